"""`skewflow reproduce rl`: policies by evolution strategies (Sec. 6.1, Fig. 2 and 3)."""
