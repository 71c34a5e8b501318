"""Ways of stepping weights: a class for each, all with one interface."""
