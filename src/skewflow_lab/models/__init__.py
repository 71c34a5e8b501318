"""Networks, and the ways of training them that experiments and benchmarks compare."""
