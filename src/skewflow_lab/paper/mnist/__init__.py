"""`skewflow reproduce mnist`: a multi-layer perceptron on MNIST (Sec. 6.2, Fig. 4)."""
