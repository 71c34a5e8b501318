"""Quadratic assignment and graph isomorphism by a flow on O(n)."""

from .isomorphism import GraphIsomorphism as GraphIsomorphism
from .isomorphism import graph_isomorphism as graph_isomorphism
from .solve import quadratic_assignment as quadratic_assignment
