"""Kernels that need no GPU."""
