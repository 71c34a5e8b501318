"""`skewflow reproduce variance`: the variance of the samplers' estimates."""
