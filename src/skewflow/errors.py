"""Errors of skewflow: each message states the rule, the value that broke it and the way out."""


class SkewflowError(Exception):
    """Base class of skewflow's errors. A wrong option raises a plain ValueError."""


class ShapeError(SkewflowError, ValueError):
    """A tensor has the wrong number of dimensions, or sizes that do not fit."""


class DtypeError(SkewflowError, TypeError):
    """A tensor has a dtype for which the operation is not defined."""


class NonFiniteError(SkewflowError, ValueError):
    """A tensor holds NaN or infinity."""


class NotOnManifoldError(SkewflowError, ValueError):
    """A matrix is not on the manifold, not skew, or not in the tangent space."""


class BlockSizeError(SkewflowError, ValueError):
    """A block size, or a list of block sizes, does not fit the number of rows."""


class WeightFunctionError(SkewflowError, ValueError):
    """A weight function h is not even, not zero at zero, or not positive elsewhere."""


class FamilyError(SkewflowError, ValueError):
    """A family of partitions does not exist, is not implemented, or does not fit the matrix."""


class BalanceError(SkewflowError, ValueError):
    """Omega is less balanced than declared, so rejection sampling would be biased."""


class SamplingError(SkewflowError, RuntimeError):
    """A sampler cannot go on: it ran out of trials, or its state belongs to another matrix."""


class TooLargeError(SkewflowError, ValueError):
    """An exact enumeration would have more outcomes than its limit."""


class NonFiniteGradientError(SkewflowError, ValueError):
    """A gradient holds NaN or infinity; the message names the parameter."""


class FactorError(SkewflowError, ValueError):
    """Factors of a gradient do not fit the weight, or the weight has changed since the capture."""


class NonFiniteReturnError(SkewflowError, ValueError):
    """A function that an evolution strategy evaluates returned NaN or infinity."""


class WorkerError(SkewflowError, RuntimeError):
    """A worker process died repeatedly, or the objective cannot be sent to it."""


class CheckpointError(SkewflowError, ValueError):
    """A saved state cannot be read, or belongs to another run."""
