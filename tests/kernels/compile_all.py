"""Compile every CUDA kernel for compute 9.0, which needs no GPU; run by `test_compile.py`.

Each kernel in its richest form; with --all also in plainer and larger ones, which takes twice as
long.
"""

import sys
from itertools import product
from unittest.mock import patch

import torch
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource, compile

from skewflow.kernels._runtime._launch_triton import Launch
from skewflow.kernels._runtime._operands_triton import Operands
from skewflow.kernels.exact_polar._kernels_triton import (
    SCALARS,
    blend_of,
    cut_of,
    decide_of,
    series_of,
)
from skewflow.kernels.exact_polar._small_triton import MUCH_SHARED, ROWS, plan_small_polar
from skewflow.kernels.multiply_parts import SHARED
from skewflow.kernels.multiply_parts._triton import (
    TILES,
    empty_parts,
    product_of,
    split_of,
)
from skewflow.kernels.multiply_where._triton import launch_of
from skewflow.kernels.natural_factors import _launches_triton as natural
from skewflow.kernels.recurrence._triton import advance, retreat
from skewflow.kernels.rotate_blocks._launches_triton import MOST_SHARED, plan_blocks
from skewflow.kernels.rotate_factored._launches_triton import FactoredWorkspace
from skewflow.kernels.rotate_pairs._triton import plan_pairs
from skewflow.kernels.rotate_rounds import _triton as rounds
from skewflow.kernels.update import Update

ALL = "--all" in sys.argv

TYPES = {
    torch.float32: "*fp32",
    torch.float64: "*fp64",
    torch.bfloat16: "*bf16",
    torch.float16: "*fp16",
    torch.bool: "*i1",
    torch.int32: "*i32",
    torch.int64: "*i64",
}
SMALL_SHARED = 99 * 1024
"""Bytes of shared memory that a program may have on GPUs for the desktop."""

NUMBERS = {
    **dict.fromkeys(("scale", "momentum", "beta2", "eps"), "fp64"),
    "lr": "fp32",
    "tolerance": "fp32",
    "done": "i64",
    "row": "i32",
    "rank": "i32",
    "longer": "fp32",
}


def type_of(value):
    if isinstance(value, torch.Tensor):
        return TYPES[value.dtype]
    if isinstance(value, tuple):
        return tuple(type_of(item) for item in value)
    return "fp32" if isinstance(value, float) else "i32"


def compile_launch(launch: Launch) -> int:
    """Compile, and say how many bytes of shared memory a program takes."""
    signature, constants = {}, {}
    for place, parameter in enumerate(launch.kernel.params):
        name = parameter.name
        value = launch._arguments.get(name)
        if name in NUMBERS:
            signature[name] = NUMBERS[name]
        elif parameter.is_constexpr or value is None:
            signature[name], constants[(place,)] = "constexpr", value
        else:
            signature[name] = type_of(value)
    source = ASTSource(launch.kernel, signature, constants)
    compiled = compile(source, target=GPUTarget("cuda", 90, 32), options=launch.options)
    return compiled.metadata.shared


def operands(shape, *, num, columns, momentum, low, rich):
    def tensor(dtype=torch.float32):
        A = torch.zeros(2, *shape, dtype=dtype)
        return A.mT.contiguous().mT if columns else A

    d = shape[0]
    return Operands(
        [tensor() for _ in range(num)],
        [tensor(torch.bfloat16 if low else torch.float32) for _ in range(num)],
        [tensor() for _ in range(num)] if momentum else None,
        [tensor(torch.bfloat16) for _ in range(num)] if low else None,
        list(range(num)),
        torch.zeros((), dtype=torch.int64) if rich else None,
        torch.zeros(1 + num, dtype=torch.int32),
        torch.ones(num, dtype=torch.int32) if rich else None,
        torch.ones(num, 2, d) if rich else None,
        torch.ones(num, 2, d) if rich else None,
    )


def compile_products() -> None:
    """Products of parts in all their tiles, and the kernels of a polar step that make parts."""
    X, P, some = torch.zeros(2, 600, 520), torch.zeros(2, 520, 520), torch.ones(2)
    live = torch.ones(2, dtype=torch.bool)
    X_parts, P_parts = empty_parts(2, 600, 520, some), empty_parts(2, 520, 520, some)
    T_parts, numbers = empty_parts(2, 520, 520, some), torch.zeros(9, 2)
    launches = [
        split_of(X_parts, X, 2.0),
        split_of(X_parts, X, some.double(), live),
        cut_of(X, X, X, (some.double(), some.double()), some[0].double(), X_parts),
        series_of((P_parts.values, P_parts.values, P), P, P, live, numbers, T_parts),
    ]
    for place, tiles in enumerate(TILES):  # each with one of the products of a step
        product = [
            product_of(None, P_parts, X_parts.mT, X_parts, tiles=tiles),
            product_of(X, None, X_parts, P_parts.mT, X, -1.0, tiles=tiles),
            product_of(X, X_parts, X_parts, P_parts, X, -0.5, 1.5, live=live, tiles=tiles),
        ][place % 3]
        launches.append(product)
    for place, tiles in enumerate(TILES):
        also = {"tiles": tiles, "symmetric": True}
        product = [
            product_of(P, None, X_parts.mT, X_parts, minus_identity=True, **also),
            product_of(None, P_parts, T_parts, T_parts, P, some, live=live, **also),
        ][place % 2]
        launches.append(product)
    for launch in launches:
        shared = compile_launch(launch)
        print("multiply_parts", launch.kernel.__name__)
        if shared > SHARED:
            raise MemoryError(f"a product of parts takes {shared} bytes of shared memory.")


def compile_natural() -> None:
    """Natural factors, and what large factored steps have in common with them: all their tiles."""
    large = ((4096, 2048, 128, False),) if ALL else ()
    for d, k, rank, coarse in ((600, 200, 40, True), *large):
        X, state = torch.zeros(1, d, k), (torch.zeros(1, k, k), torch.zeros(2), torch.zeros(k))
        A, B = torch.zeros(1, rank, d).mT, torch.zeros(1, k, rank)
        with patch.object(natural, "is_coarse", lambda X, coarse=coarse: coarse):
            ours = natural.NaturalWorkspace(X, rank)
            launches = [*ours._take(A, B, state), *ours._make(X, state)]
        for launch in launches:
            shared = compile_launch(launch)
            print("natural", launch.kernel.__name__, rank)
            if shared > SHARED:
                raise MemoryError(f"natural factors take {shared} bytes of shared memory.")


def main() -> None:
    for columns, rich in product((False, True), (False, True) if ALL else (True,)):
        ours = operands(
            (100, 60), num=3 if rich else 1, columns=columns, momentum=rich, low=rich, rich=rich
        )
        update = Update(lr=0.1, momentum=0.9 if rich else 0.0, nesterov=rich)
        plans = [
            plan_pairs(ours, update, early=1),
            plan_pairs(ours, update, **({"chunks": 2} if columns else {"block_k": 16})),
            plan_blocks(ours, update, 20, early=1),
        ]
        if columns == (rich and ALL):
            plans += [
                plan_blocks(ours, update, 100, early=1, reload=reload) for reload in {False, rich}
            ]
        launches = [launch for plan in plans for launch in plan.launches]
        for launch in launches:
            shared = compile_launch(launch)
            name = launch.kernel.__name__
            print(name, "columns" if columns else "rows", rich)
            if shared > (MOST_SHARED if launch._arguments.get("RELOAD") is False else SMALL_SHARED):
                raise MemoryError(f"a program of {name} takes {shared} bytes of shared memory.")
    for k, rich in ((16, True), (17, False), (64, True)) if ALL else ((16, True),):
        ours = operands(
            (100, k), num=3 if rich else 1, columns=rich, momentum=rich, low=rich, rich=rich
        )
        update = Update(lr=0.1, momentum=0.9 if rich else 0.0)
        (launch,) = plan_small_polar(ours, update).launches
        shared = compile_launch(launch)
        print("small polar", k, rich)
        if shared > (MUCH_SHARED if k == 64 else SMALL_SHARED):
            raise MemoryError(f"a small exact step takes {shared} bytes of shared memory.")
    if ALL:
        (launch,) = plan_small_polar(ours, update, block_d=ROWS // 2).launches
        shared = compile_launch(launch)
        print("small polar, half as many rows")
        if shared > SMALL_SHARED:
            raise MemoryError(f"a small exact step of half as many rows takes {shared} bytes.")
    X = torch.zeros(1, 600, 200)
    A, B = torch.zeros(1, 40, 600).mT, torch.zeros(1, 200, 40)
    for known in (False, True):
        workspace = FactoredWorkspace(X, 40, has_v=known, has_ax=known)
        products = (A, B.mT) if known else (None, None)
        given = dict(zip(("A_ptr", "B_ptr", "V_ptr", "AX_ptr"), (A, B, *products), strict=True))
        flag = torch.zeros(1, dtype=torch.int32)
        for launch in [*workspace._take(X, given), *workspace._make(X, flag)]:
            shared = compile_launch(launch)
            print(launch.kernel.__name__, known)
            if shared > SMALL_SHARED:
                raise MemoryError(f"a factored step takes {shared} bytes of shared memory.")
    compile_natural()
    out, live = torch.zeros(2, 200, 200), torch.ones(2, dtype=torch.bool)
    for C, alpha in ((out, 2.0), (None, torch.ones(2))):
        compile_launch(launch_of(out, out, out, live, C, alpha, 1.5))
        print("multiply_where", C is None)
    X, one, P = torch.zeros(2, 100, 60), torch.ones(2, dtype=torch.float64), torch.zeros(2, 60, 60)
    numbers, ends = torch.zeros(2 + SCALARS, 2), torch.ones(2, 3, dtype=torch.float64)
    flags = torch.ones(4, 2, dtype=torch.bool)
    for launch in (
        cut_of(X, X, X, (one, one), one[0]),
        decide_of(numbers, flags, one, ends),
        blend_of(X, X, numbers[2], flags[2]),
        blend_of(X, X, None, flags[3]),
        series_of((P, P, P), P, P, flags[0], numbers[5:]),
    ):
        compile_launch(launch)
        print("polar", launch.kernel.__name__)
    compile_products()
    states, W, bias = torch.zeros(5, 2, 176), torch.zeros(176, 176), torch.zeros(176)
    for f in (bias, None):
        for launch in (advance(states, W, f), retreat(states, states, W, f)):
            compile_launch(launch)
            print(launch.kernel.__name__)
    for dtype in (torch.float32, torch.float64):
        x, angles = torch.zeros(9, 100, dtype=dtype), torch.zeros(5, 50, dtype=dtype)
        pairs = torch.zeros(5, 50, 2, dtype=torch.int32)
        for launch in (
            rounds.advance(x, pairs, angles, angles),
            rounds.retreat(x, x, pairs, angles, angles)[1],
        ):
            compile_launch(launch)
            print("rounds", launch.kernel.__name__)


if __name__ == "__main__":
    main()
