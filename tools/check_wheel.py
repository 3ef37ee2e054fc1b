"""Whether the wheel in dist/ is whole, and works from an empty folder.

It is installed without dependencies into an environment of its own, which sees the packages of the
one that runs this script, but neither its installation of spgru nor the sources.

Run:  python tools/check_wheel.py          (after python -m build; `make wheel` does both)
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]

TRIAL = """
import sys
from pathlib import Path

import torch

import spgru
from spgru.data import load_mnist
from spgru.training import load_config, load_model

folder = Path(spgru.__file__).parent
assert folder.is_relative_to(sys.prefix), f"imported {folder}, not the wheel"
assert (folder / "py.typed").exists()

out, _ = spgru.GRU(3, 5, weight_std=0.1)(torch.randn(7, 2, 3))
assert bool(out.var.gt(0).all())
print("layers:", spgru.GRU(3, 5).backend_for(torch.randn(7, 2, 3)))
print("digits:", *load_mnist("test").images.shape)
configs = sorted((folder / "studies" / "configs").glob("*/*.yaml"))
assert configs and all(load_config(path) for path in configs)
print("configurations:", len(configs))
with torch.no_grad():
    frames = load_model("two-digits-conv").model.eval().predict(torch.rand(10, 1, 64, 64), 1)
print("packaged network:", *frames.shape, f"mean variance {frames.var.mean():.2g}")
"""


def missing(wheel: Path) -> list[str]:
    """Files of the package that git knows and the wheel lacks."""
    listed = subprocess.run(
        ["git", "ls-files", "src/spgru"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    packed = set(zipfile.ZipFile(wheel).namelist())
    return [name for name in listed if name.removeprefix("src/") not in packed]


def main() -> None:
    wheels = sorted((ROOT / "dist").glob("*.whl"))
    if len(wheels) != 1:
        raise SystemExit(f"dist/ has {len(wheels)} wheels; empty it and run python -m build")
    (wheel,) = wheels
    if lacking := missing(wheel):
        raise SystemExit(f"{wheel.name} lacks {lacking}; see package-data in pyproject.toml")
    print(f"{wheel.name}: {wheel.stat().st_size / 2**20:.1f} MiB, every file of the package")
    with tempfile.TemporaryDirectory() as folder:
        venv.create(Path(folder) / "venv", with_pip=False)
        binaries, empty = Path(folder) / "venv" / "bin", Path(folder) / "empty"
        empty.mkdir()
        install = [sys.executable, "-m", "pip", "--python", str(binaries / "python"), "install"]
        clean = {"PATH": "/usr/bin:/bin", "HOME": folder}  # above all no PYTHONPATH
        alone = ["--quiet", "--no-deps", "--no-index"]
        subprocess.run([*install, *alone, str(wheel)], check=True, env=clean)
        (packages,) = (Path(folder) / "venv" / "lib").glob("*/site-packages")
        # A line in a .pth file adds a folder, without the .pth files in it: no editable spgru.
        (packages / "dependencies.pth").write_text(sysconfig.get_path("purelib") + "\n")
        for command in (["python", "-I", "-c", TRIAL], ["spgru", "--version"], ["spgru", "--help"]):
            quiet = subprocess.DEVNULL if "--help" in command else None
            subprocess.run(
                [str(binaries / command[0]), *command[1:]], cwd=empty, check=True, stdout=quiet,
                env=clean,
            )  # fmt: skip
    print("works from an empty folder")


if __name__ == "__main__":
    main()
