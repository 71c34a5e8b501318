"""`skewflow reproduce table1`: the operations of one update (Sec. 6.3, Table 1)."""
