"""The hidden states of a recurrent net, $h_t = f(u_t + W h_{t-1})$, along a sequence (Sec. 6.1)."""

from .reference import recurrence as recurrence

__all__ = ["recurrence"]
