"""What kernels share: compiled CPU loops, Triton launches, CUDA graphs and finite checks."""
