"""`skewflow reproduce ode`: differential equations whose weight flows on O(d) (Sec. 9.9)."""
