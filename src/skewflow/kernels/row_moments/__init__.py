"""Second moments of the rows of a gradient, by which FlowAdam divides the planes."""
