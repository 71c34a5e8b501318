"""`skewflow bench training`: the time of one training step."""
