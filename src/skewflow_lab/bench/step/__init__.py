"""`skewflow bench step`: the time of one optimiser step."""
