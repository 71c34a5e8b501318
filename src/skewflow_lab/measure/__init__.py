"""Instruments: clocks, operation counts, CUDA graphs, simulated precision, balance."""
