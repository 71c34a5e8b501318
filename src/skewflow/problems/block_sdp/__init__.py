"""Block-diagonal semidefinite programs, solved on a product of Stiefel manifolds."""

from .problem import solve_block_sdp as solve_block_sdp
from .solve import BlockSDP as BlockSDP
