"""Weights that torch shards over processes (DTensor): steps of their parts by sums over processes.

A block step needs inner products of rows, and an exact step the products of columns. Along the
dimension that is summed, each process adds up its own part, and one all-reduce adds up the parts:
the rest of the step is local.
"""
