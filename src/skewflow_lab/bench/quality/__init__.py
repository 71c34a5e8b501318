"""`skewflow bench quality`: seconds to a gap, on problems from the rivals' papers and codes."""
