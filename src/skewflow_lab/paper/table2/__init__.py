"""`skewflow reproduce table2`: sorting by stochastic and exact flows (Sec. 9.3, Table 2)."""
