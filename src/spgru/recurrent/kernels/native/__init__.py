"""Kernels in C for CPUs, compiled when first needed by the machine's own compiler."""
