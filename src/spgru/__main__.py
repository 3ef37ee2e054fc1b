"""`python -m spgru`, and with it `torchrun -m spgru`."""

from spgru.cli import main

if __name__ == "__main__":
    main()
