"""The flat arguments of an attention kernel: as named tensors, how far kernels index into them, random ones, the reference."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import sympy
import torch

from polytile.attention.problem import AXES, EXTENTS, AttentionProblem, symbol
from polytile.ir.attention import attend, attend_backward
from polytile.runtime import noise
from polytile.schedule.canonical import precision_of


@dataclass(frozen=True)
class Operands:
    """The tensors of a call as strided views of four dimensions; `lse` and `saved` of three. Those from `saved` on are of the
    derivative."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    out: torch.Tensor
    bias: torch.Tensor | None = None
    lse: torch.Tensor | None = None
    saved: torch.Tensor | None = None
    grad: torch.Tensor | None = None
    dq: torch.Tensor | None = None
    dk: torch.Tensor | None = None
    dv: torch.Tensor | None = None

    @property
    def gradients(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Where those of q, k and v go."""
        assert self.dq is not None and self.dk is not None and self.dv is not None
        return self.dq, self.dk, self.dv

    @property
    def left(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """What a derivative reads besides q, k, v and bias: out, its lse and its gradient."""
        assert self.saved is not None and self.grad is not None
        return self.out, self.saved, self.grad


def operands(problem: AttentionProblem, args: Sequence[Any]) -> Operands:
    """Flat arguments as tensors in their own sizes and strides."""
    named = {}
    for tensor, (name, extents, strides) in zip(args, _places(problem), strict=False):
        shape = tuple([args[k] for k in extents])
        if strides is None:
            named[name] = tensor if tensor.shape == shape else tensor.view(shape)
            continue
        steps = tuple([args[k] for k in strides])
        alike = tensor.shape == shape and tensor.stride() == steps
        named[name] = tensor if alike else tensor.as_strided(shape, steps, tensor.storage_offset())
    return Operands(**named)


@functools.lru_cache(1024)
def _places(problem: AttentionProblem) -> list[tuple[str, list[int], list[int] | None]]:
    """For each tensor its name and where among the flat arguments its sizes and its strides are."""
    at = {name: k for k, name in enumerate(problem.size_names, len(problem.tensors))}
    places: list[tuple[str, list[int], list[int] | None]] = []
    for tensor in problem.tensors:
        extents = [at[extent] for extent in EXTENTS[tensor.name]]
        strided = AXES.get(tensor.name)
        places.append((tensor.name, extents, [at[f"{tensor.name}_stride_{axis}"] for axis in strided] if strided else None))
    return places


def settings(problem: AttentionProblem) -> dict[str, Any]:
    """The keyword arguments of `ir.attention.attend` that do what the problem says."""
    fill = {"fill": problem.bias.fill} if problem.bias is not None else {}
    return {"scale": problem.scale, "causal": problem.causal.value, "empty_is_0": problem.empty_is_0, **fill}


def reference(problem: AttentionProblem) -> Callable[..., None]:
    """Attention on flat arguments, in float64 where these were widened, else in the type of the sums."""

    def run(*args: Any) -> None:
        given = operands(problem, args)
        precision = precision_of(problem.tensors, args)
        if problem.backward:
            found = attend_backward(given.q, given.k, given.v, *given.left, given.bias, **settings(problem), precision=precision)
            for gradient, value in zip(given.gradients, found, strict=True):
                gradient.copy_(value)
            return
        out, lse = attend(given.q, given.k, given.v, given.bias, **settings(problem), precision=precision)
        given.out.copy_(out)
        if given.lse is not None:
            given.lse.copy_(lse)

    return run


def positions(problem: AttentionProblem) -> tuple[sympy.Expr, ...]:
    """Upper bounds of all positions in tensors that a kernel indexes, one for each tensor, as expressions in its integers."""
    ends = []
    for tensor in problem.tensors:
        sizes = [symbol(name) for name in EXTENTS[tensor.name]]
        if tensor.name in AXES:
            ends.append(sum(n * symbol(f"{tensor.name}_stride_{a}") for n, a in zip(sizes, AXES[tensor.name], strict=True)))
        else:
            ends.append(sympy.Mul(*sizes))
    return tuple(ends)


def make_args(problem: AttentionProblem, size: Mapping[str, int], target: torch.device | None = None) -> list[Any]:
    """Random flat arguments for the given sizes, on `target` or the CPU; of a derivative `out` and `saved` are what the attention
    gives. Strides that `size` lacks are row-major ones."""
    full = {**problem.dense_strides(size), **size}
    tensors = []
    for tensor in problem.tensors:
        sizes = [full[name] for name in EXTENTS[tensor.name]]
        count = 1
        if tensor.name in AXES:
            strides = [full[f"{tensor.name}_stride_{axis}"] for axis in AXES[tensor.name]]
            count += sum(max(0, n - 1) * stride for n, stride in zip(sizes, strides, strict=True))
        else:
            count = sizes[0] * sizes[1] * sizes[2]
        tensors.append(_random(count, tensor.dtype, target))
    args = [*tensors, *[full[name] for name in problem.size_names]]
    if problem.backward:
        given = operands(problem, args)
        for place, value in zip(given.left, attend(given.q, given.k, given.v, given.bias, **settings(problem)), strict=False):
            place.copy_(value)
    return args


def _random(count: int, dtype: torch.dtype, target: torch.device | None) -> torch.Tensor:
    """Numbers; of booleans three in four hold."""
    if dtype == torch.bool:
        return noise.integers(0, 4, count, torch.int64, target) > 0
    return noise.normal(count, target).to(dtype)
