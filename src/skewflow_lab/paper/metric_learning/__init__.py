"""`skewflow reproduce metric-learning`: neighbours under learned metrics (Sec. 1)."""
