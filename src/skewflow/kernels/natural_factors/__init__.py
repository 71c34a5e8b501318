r"""Factors of a gradient divided by the second moment of its right factors, which is kept."""
