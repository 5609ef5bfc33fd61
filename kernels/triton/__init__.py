"""Kernels written in Triton: every head size and dtype, compiled at first use."""
