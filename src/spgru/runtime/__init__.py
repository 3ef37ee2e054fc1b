"""What training, studies and benchmarks need of the machine: files, devices, memory, provenance.

Imports nothing else of the library.
"""
