"""`skewflow reproduce synchronize`: certified poses of SLAM graphs (Sec. 1)."""
