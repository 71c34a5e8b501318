"""Max-cut by semidefinite relaxation, with a certified bound."""

from .solve import MaxCut as MaxCut
from .solve import max_cut as max_cut
