"""Which learning rate is best, by the law of the step, its block size, and the size of matrices."""
