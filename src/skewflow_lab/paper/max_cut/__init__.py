"""`skewflow reproduce max-cut`: certified cuts of Gset's graphs (Sec. 1)."""
