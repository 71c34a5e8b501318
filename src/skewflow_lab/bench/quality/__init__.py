"""`skewflow bench quality`: seconds to a gap, on problems that the rivals chose."""
