"""Ways of stepping weights: one class for each, all with one interface."""
