"""Synchronisation of rotations and poses from noisy relative measurements."""

from .g2o import read_g2o as read_g2o
from .pose_graph import PoseGraph as PoseGraph
from .solve import Synchronization as Synchronization
from .solve import average_rotations as average_rotations
from .solve import synchronize as synchronize
