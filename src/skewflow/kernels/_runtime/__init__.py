"""Common tools of the kernels: compiled CPU loops, Triton launches, CUDA graphs, finite checks."""
