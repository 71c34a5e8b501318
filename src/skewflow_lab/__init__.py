"""Experiments, benchmarks and the command line; needs the extra `lab`."""
