"""The options of a parameter group: checks, and their translation for a step."""

import math
import operator
from collections.abc import Collection
from typing import Any

import torch

from .. import _validate
from ..errors import BlockSizeError
from ..samplers import HeavyMatchings, Sampler, Sparsified
from .moved_options import MOVED_SAMPLERS, refuse_moved

FUSED_SAMPLERS = ("sweep", "uniform")
"""Samplers that the kernels draw by themselves; those on the host are objects."""

OTHERS_OPTIONS = (
    *("amsgrad", "angle", "betas", "dampening", "eps"),
    *("factor_window", "gather", "momentum", "nesterov", "num_draws", "scale"),
)
"""Options that only some optimisers of torch or of this package have."""


def is_fused(sampler: str | Sampler) -> bool:
    """Whether the kernels draw the blocks, so that no sampler runs on the host."""
    return isinstance(sampler, str) and sampler in FUSED_SAMPLERS


def check_options(group: dict[str, Any]) -> None:
    """Check that every option has its type and fits the others.

    Whole numbers of other types, such as numpy's, become Python's.
    """
    _check_lr(group["lr"])
    for name in ("maximize", "nesterov", "gather"):
        if not isinstance(group.get(name, False), bool):
            raise TypeError(f"`{name}` must be True or False: got {group[name]!r}.")
    if group["foreach"] not in (None, True, False):
        raise TypeError(f"`foreach` must be None, True or False: got {group['foreach']!r}.")
    _check_moments(group)
    group["seed"] = _whole(group["seed"], "seed", most=2**63 - 1)
    group["check_every"] = _whole(group["check_every"], "check_every")
    _validate.count(group.get("factor_window", 1), "factor_window")
    _validate.one_of(group["nonfinite"], ("raise", "skip"), "nonfinite")
    _validate.one_of(group["retraction"], ("auto", "exp", "cayley", "polar"), "retraction")
    if "angle" in group:
        _validate.one_of(group["angle"], ("rms", "spectral"), "angle")
    if not _number(group.get("scale", 1.0), "scale") > 0:
        raise ValueError(f"`scale` must be above 0, the length of a column: got {group['scale']}.")
    _refuse_weight_decay(group)
    _check_block_size(group)
    _check_sampler(group)
    _check_draws(group)
    _check_natural(group)
    size = group["block_size"]
    if group["retraction"] == "polar" and size != "dense":
        raise ValueError(
            f'`retraction="polar"` is a dense step: got block_size={size!r}. '
            'Use block_size="dense", or retraction="auto".'
        )


def refuse_foreign_options(group: dict[str, Any], own: Collection[str]) -> None:
    """Check that a group has no option of another optimiser, because nothing would read it."""
    refuse_moved(name for name in group if name not in own)
    foreign = [name for name in group if name in OTHERS_OPTIONS and name not in own]
    if foreign:
        name = foreign[0]
        raise ValueError(
            f"`{name}` is not an option of this optimiser: a group has {name}={group[name]!r}, "
            "which no step would use. Leave it out, or choose the optimiser that has it."
        )


def _check_lr(lr: Any) -> None:
    if isinstance(lr, torch.Tensor):
        if lr.numel() != 1:
            raise ValueError(f"`lr` must be a number or one element: got shape {tuple(lr.shape)}.")
        if lr.is_complex() or lr.dtype == torch.bool:
            raise TypeError(f"`lr` must be a real number: got a tensor of {lr.dtype}.")
        lr = float(lr)
    _number(lr, "lr")


def _check_moments(group: dict[str, Any]) -> None:
    """Check momentum, betas and eps."""
    if "momentum" in group and _number(group["momentum"], "momentum") >= 1:
        raise ValueError(
            f"`momentum` must be below 1: got {group['momentum']}. From 1 on old gradients never "
            "fade, and the momentum grows without bound."
        )
    if group.get("nesterov") and not group["momentum"] > 0:
        raise ValueError(f"`nesterov` needs a momentum above 0: got {group['momentum']}.")
    betas = group.get("betas", (0, 0))
    if not isinstance(betas, tuple | list) or len(betas) != 2:
        raise ValueError(f"`betas` must be two numbers, as (0.9, 0.999): got {betas!r}.")
    for place, beta in enumerate(betas):
        if not 0 <= _real(beta, "betas") < 1:
            raise ValueError(f"`betas` must lie in [0, 1): got {beta} at place {place}.")
    if not _number(group.get("eps", 1.0), "eps") > 0:
        raise ValueError(
            f"`eps` must be above 0, as rows may have no gradient: got {group['eps']}."
        )


def _refuse_weight_decay(group: dict[str, Any]) -> None:
    decay = group.get("weight_decay", 0)
    if _number(decay, "weight_decay") > 0:
        raise ValueError(
            f"`weight_decay` must be 0 for orthogonal weights: got {decay}. Decay pulls a matrix "
            "towards zero, and the norm of an orthogonal one never changes, so there is nothing to "
            "decay. Set it to 0 in this group; decay the other weights in their own optimiser."
        )


def _check_block_size(group: dict[str, Any]) -> None:
    size = group["block_size"]
    if size in ("auto", "dense"):
        return
    try:
        if isinstance(size, bool):
            raise TypeError
        group["block_size"] = size = operator.index(size)
    except TypeError:
        raise BlockSizeError(
            f'`block_size` must be an integer of at least 2, "dense" or "auto": got {size!r}.'
        ) from None
    if size < 2:
        raise BlockSizeError(f"`block_size` must be at least 2, a matching: got {size}.")


def _check_sampler(group: dict[str, Any]) -> None:
    """Check that the sampler is known and draws blocks of the group's size."""
    size, sampler = group["block_size"], group["sampler"]
    if isinstance(sampler, Sampler):
        own = own_block_size(sampler)
        if isinstance(size, int) and own is not None and own != size:
            raise BlockSizeError(
                f"`block_size` and `sampler` must agree: got block_size={size} and {sampler!r}, "
                f"which draws blocks of {own}. Leave `block_size` out, or set it to {own!r}."
            )
    else:
        _check_name(sampler, size)
    if size == "dense" and sampler != "sweep":
        raise ValueError(
            f"`sampler` draws blocks, and exact steps have none: got block_size={size!r} and "
            f"sampler={sampler!r}. Leave `sampler` out, or give a block size."
        )


def _check_name(sampler: Any, size: int | str) -> None:
    if isinstance(sampler, str) and sampler in FUSED_SAMPLERS:
        return
    way_out = "make one, as samplers.HRegular(2)"
    if isinstance(sampler, str) and sampler in MOVED_SAMPLERS:
        known = MOVED_SAMPLERS[sampler](size if isinstance(size, int) else 2)
        way_out = f"use samplers.{type(known).__name__}, as in sampler={known!r}"
    raise ValueError(
        f"`sampler` must be 'sweep', 'uniform', or a `Sampler`: got {sampler!r}. Names are for "
        f"what the kernels draw; {way_out}."
    )


def _check_draws(group: dict[str, Any]) -> None:
    """Check that several draws are draws of matchings."""
    if "num_draws" not in group:
        return
    draws = group["num_draws"] = _whole(group["num_draws"], "num_draws")
    _validate.count(draws, "num_draws")
    size, sampler = group["block_size"], group["sampler"]
    drawn = own_block_size(sampler) if isinstance(sampler, Sampler) else size
    if draws > 1 and drawn != 2:
        raise BlockSizeError(
            f"`num_draws` above 1 draws several matchings for one gradient: got num_draws={draws} "
            f"with blocks of {drawn!r}. Set block_size=2, or leave `num_draws` out."
        )


def _check_natural(group: dict[str, Any]) -> None:
    if "natural" not in group:
        return
    if group["natural"] is not True:
        raise ValueError(
            f"`natural` is True for all weights of NaturalSGD: got {group['natural']!r}. Give "
            "others to FlowSGD."
        )
    size, retraction = group["block_size"], group["retraction"]
    if size not in ("auto", "dense") or retraction not in ("auto", "exp"):
        raise ValueError(
            f"natural steps are exact: a group has block_size={size!r} and "
            f"retraction={retraction!r}. Leave both out."
        )


def _real(value: Any, name: str) -> float:
    """Check that a value is a real number."""
    try:
        if isinstance(value, str | bytes | bool | None):
            raise TypeError
        return float(value)
    except (TypeError, ValueError):
        raise TypeError(
            f"`{name}` must be a number: got {value!r}, a {type(value).__name__}."
        ) from None


def _number(value: Any, name: str) -> float:
    """Check that a value is a finite real number of at least 0."""
    number = _real(value, name)
    if not number >= 0:
        raise ValueError(f"`{name}` must be at least 0: got {value}.")
    if math.isinf(number):
        raise ValueError(f"`{name}` must be finite: got {value}.")
    return number


def _whole(value: Any, name: str, most: int | None = None) -> int:
    """Check that a value is a whole number of at least 0, and return it as an int."""
    bound = "" if most is None else f" and at most {most}"
    rule = f"`{name}` must be a whole number of at least 0{bound}: got {value!r}."
    try:
        number = -1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        raise TypeError(rule) from None
    if number < 0 or (most is not None and number > most):
        raise ValueError(rule)
    return number


def own_block_size(sampler: Sampler) -> int | None:
    """The block size that a sampler object draws; None where its blocks differ, or are unknown."""
    if isinstance(sampler, HeavyMatchings | Sparsified):
        return 2
    size = getattr(sampler, "block_size", None)
    return size if isinstance(size, int) else None


def block_size_for(block_size: int | str, d: int) -> int | str:
    """The block size of matrices of d rows: an integer below d, or "dense".

    An integer is an upper limit: matrices with fewer rows are stepped exactly.
    """
    return block_size if isinstance(block_size, int) and block_size < d else "dense"
