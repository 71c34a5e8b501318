"""Helpers for training on several processes: where to shard, and whether processes agree.

The optimisers step weights that torch shards (`fully_shard`, `parallelize_module`) without any of
this; the helpers put each weight on the dimension whose steps are cheap.
"""

from .agreement import check_agreement as check_agreement
from .placements import shard_placement as shard_placement
from .placements import tensor_parallel_plan as tensor_parallel_plan

__all__ = ["check_agreement", "shard_placement", "tensor_parallel_plan"]
