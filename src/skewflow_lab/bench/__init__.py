"""Benchmarks: the cost of a step beside that of every alternative."""
