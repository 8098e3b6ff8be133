"""The size of the terms of a result, to which the rounding error of a right kernel is relative.

A sum of large terms may cancel to about 0: the gradient of a bias before a normalisation, the mean of what a group norm gives.
Each order of summation leaves another remainder, and relative to the result none is near the others. Monte Carlo arithmetic (D.
S. Parker, 1997) tells how large the terms were: the reference runs again with each value that it computes, and each term that
it adds up, off by a random relative amount. How far results move, divided by that amount, is the root of the sum of the squares
of their terms, for any reference that is made of torch's operators. Integers stay as they are, since kernels compute them
exactly.

Comparisons and roundings decide in all runs as in the first, unperturbed one: near_ties.py deals with what rounding may decide.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

from polytile.ir.dtypes import FLOAT8

SAMPLES = 8
"""How often the reference runs with perturbed values. One run moves a scalar by less than a tenth of the usual amount in 8 % of
all cases; eight runs do so in fewer than one of a million."""

WIDTH = math.sqrt(3)
"""Amounts are uniform between plus and minus this many times `off`, so that their root mean square is `off`."""

OFF: Mapping[torch.dtype, float] = {torch.float64: 1e-9, torch.float32: 1e-4, torch.float16: 2.0**-7, torch.bfloat16: 2.0**-4}
"""By how much values are off, by the type computed in: far more than its own rounding, and so little, but in the 16-bit types,
that results move in proportion."""

INTEGERS = float(1 << 24)
"""Integers below this are exact in float32, sums and products of them too."""

EXACT = frozenset(
    "clone _to_copy copy contiguous cat stack index _unsafe_index index_select gather where masked_fill "
    "masked_select masked_scatter select_scatter slice_scatter as_strided_scatter scatter flip roll repeat "
    "repeat_interleave take constant_pad_nd reflection_pad1d reflection_pad2d replication_pad1d replication_pad2d "
    "neg abs relu clamp clamp_min clamp_max minimum maximum fmin fmax amax amin max min aminmax sort topk kthvalue "
    "median cummax cummin fill zero zeros_like ones_like full_like empty_like new_empty new_zeros new_ones new_full "
    "nan_to_num embedding max_pool2d_with_indices max_pool3d_with_indices unfold_copy im2col tril triu diag "
    "copysign rand_like randn_like bernoulli".split()
)
"""ATen's operators that hand values on, or choose among them, and round nothing."""

JUMPS = frozenset("floor ceil trunc round sign sgn heaviside floor_divide remainder fmod frac".split())
"""Operators with a result of floats that jumps where an argument changes a little."""

Evaluate = Callable[[], "Sequence[torch.Tensor] | None"]
"""Runs the reference and returns what it wrote, in memory of its own; None if it fails."""


def sizes_of_terms(evaluate: Evaluate, off: float) -> list[torch.Tensor] | None:
    """For each tensor that the reference writes the size of its elements' terms plus its root mean square over the tensor, as
    float64 (complex: of each part; integers: 0). `off` is one of OFF. None where the reference fails."""
    decisions: list[torch.Tensor] = []
    with _without_modes(), _Exact(decisions):
        first = evaluate()
    if first is None:
        return None
    squares = [torch.zeros_like(_parts(tensor), dtype=torch.float64) for tensor in first]
    for seed in range(SAMPLES):
        with _without_modes(), _Off(decisions, off, seed):
            moved = evaluate()
        if moved is None:
            return None
        for square, before, after in zip(squares, first, moved, strict=True):
            if _rounds(before):
                distance = (_parts(after).double() - _parts(before).double()) / off
                square += distance.square_().nan_to_num_(nan=0.0, posinf=0.0) / SAMPLES
    return [square.sqrt().add_(square.mean().sqrt() if square.numel() else 0.0) for square in squares]


class _Exact(TorchDispatchMode):
    """Runs torch's operators without roundings to 16 bits, and records their decisions."""

    def __init__(self, decisions: list[torch.Tensor]) -> None:
        super().__init__()
        self.decisions = decisions

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name, schema = func.overloadpacket.__name__.rstrip("_"), func._schema
        written = {a.name for a in schema.arguments if a.alias_info is not None and a.alias_info.is_write}
        view = not written and any(result.alias_info is not None for result in schema.returns)
        if view or not any(map(_rounds, pytree.tree_leaves((args, kwargs)))):
            return func(*args, **kwargs)
        if name == "_to_copy" and _narrows(args[0], kwargs.get("dtype")):
            kwargs = {**kwargs, "dtype": args[0].dtype}
        exact, pointwise = name in EXACT, torch.Tag.pointwise in func.tags
        if not exact and not pointwise:
            named = zip(schema.arguments, args, strict=False)
            args = tuple(arg if a.name in written else pytree.tree_map(self.moved, arg) for a, arg in named)
        results = func(*args, **kwargs)
        if written:
            for result in filter(_rounds, pytree.tree_leaves(results) if pointwise and not exact else ()):
                result.copy_(self.moved(result))
            return results
        return pytree.tree_map(lambda result: self.result(result, exact, name in JUMPS), results)

    def result(self, result: Any, exact: bool, jumps: bool) -> Any:
        """What the program goes on with in place of an operator's `result`."""
        if isinstance(result, torch.Tensor) and (jumps or not _rounds(result)):
            return self.decided(result)
        return result if exact else self.moved(result)

    def decided(self, result: torch.Tensor) -> torch.Tensor:
        self.decisions.append(result.clone())
        return result

    def moved(self, value: Any) -> Any:
        """A value that was computed, or one of the terms of a sum."""
        return value


class _Off(_Exact):
    """Runs them with every computed or accumulated value perturbed by a random relative amount, and with the recorded
    decisions."""

    def __init__(self, decisions: list[torch.Tensor], off: float, seed: int) -> None:
        super().__init__(decisions)
        self.next, self.off, self.seed = iter(decisions), off, seed
        self.generators: dict[torch.device, torch.Generator] = {}

    def decided(self, result: torch.Tensor) -> torch.Tensor:
        return next(self.next).clone()

    def moved(self, value: Any) -> Any:
        if not _rounds(value):
            return value
        parts = _parts(value)
        device = parts.device
        generator = self.generators.get(device) or self.generators.setdefault(
            device, torch.Generator(device).manual_seed(self.seed)
        )
        by = torch.empty(parts.shape, dtype=torch.float32, device=device).uniform_(-WIDTH, WIDTH, generator=generator)
        whole = (parts == parts.round()) & (parts.abs() < INTEGERS)
        moved = torch.where(whole, parts, parts * (1 + self.off * by.to(parts.dtype)))
        return torch.view_as_complex(moved) if value.is_complex() else moved


def _rounds(value: Any) -> bool:
    """Whether it is a tensor of a type that is computed in with rounding."""
    if not isinstance(value, torch.Tensor) or value.dtype in FLOAT8:
        return False
    return value.dtype.is_floating_point or value.dtype.is_complex


def _parts(value: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(value.resolve_conj()) if value.is_complex() else value


def _narrows(value: torch.Tensor, dtype: torch.dtype | None) -> bool:
    return dtype is not None and dtype.is_floating_point and _rounds(value) and dtype.itemsize < value.dtype.itemsize


@contextlib.contextmanager
def _without_modes() -> Iterator[None]:
    """Within the block no dispatch mode is active, and new ones are seen, even where tune() has switched that off."""
    include, exclude = torch._C._dispatch_tls_local_include_set(), torch._C._dispatch_tls_local_exclude_set()
    for key in (torch._C.DispatchKey.Python, torch._C.DispatchKey.PythonTLSSnapshot):
        include, exclude = include.remove(key), exclude.remove(key)
    with _disable_current_modes(), torch._C._ForceDispatchKeyGuard(include, exclude):
        yield
