"""`skewflow reproduce cifar`: PlainNet-110 on CIFAR-10 (Sec. 6.2, Fig. 5)."""
