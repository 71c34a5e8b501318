"""The hidden states of a recurrent net, h' = f(u + W h), along a sequence (Sec. 6.1)."""

from .reference import recurrence as recurrence

__all__ = ["recurrence"]
