"""Evolution strategies over torch parameters, orthogonal ones on their manifold (Sec. 6.1)."""

from .generation import Generation as Generation
from .generation import Task as Task
from .minimize import Result as Result
from .minimize import minimize as minimize
from .moments import Moments as Moments
from .objective import Objective as Objective
from .objective import Outcome as Outcome
from .shaping import centred_ranks as centred_ranks
from .shaping import direction_weights as direction_weights
from .strategy import EvolutionStrategy as EvolutionStrategy
from .strategy import Record as Record
from .workers import InProcess as InProcess
from .workers import LocalWorkers as LocalWorkers
from .workers import Workers as Workers

__all__ = [
    "EvolutionStrategy",
    "Generation",
    "InProcess",
    "LocalWorkers",
    "Moments",
    "Objective",
    "Outcome",
    "Record",
    "Result",
    "Task",
    "Workers",
    "centred_ranks",
    "direction_weights",
    "minimize",
]
