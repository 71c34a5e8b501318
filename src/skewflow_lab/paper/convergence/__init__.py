"""`skewflow reproduce convergence`: the bound of Theorem 5.1."""
