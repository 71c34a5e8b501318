"""`skewflow reproduce haar`: random flows towards Haar measure (Sec. 9.9)."""
