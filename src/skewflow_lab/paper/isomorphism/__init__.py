"""`skewflow reproduce isomorphism`: pairs of graphs with known answers (Sec. 1)."""
