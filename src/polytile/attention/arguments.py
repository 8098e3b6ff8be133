"""The flat arguments of an attention kernel: named tensors, upper bounds of their indices, random examples, and the reference."""

from __future__ import annotations

import functools
import itertools
import math
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import sympy
import torch

from polytile.attention.layout import INDICES
from polytile.attention.problem import SIZES, AttentionProblem, symbol
from polytile.ir.attention import attend, attend_backward, attend_sequences, attend_sequences_backward, factors_of
from polytile.ir.evaluate import changed_scores
from polytile.runtime import noise
from polytile.runtime.results import laid_out
from polytile.schedule import examples
from polytile.schedule.canonical import LoopKernel, TensorArg, precision_of
from polytile.schedule.facts import reaches


@dataclass(frozen=True)
class Operands:
    """The tensors of a call as strided views. Those from `saved` on belong to the backward pass."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    out: torch.Tensor = field(default=None)  # type: ignore[assignment]
    bias: torch.Tensor | None = None
    lse: torch.Tensor | None = None
    saved: torch.Tensor | None = None
    grad: torch.Tensor | None = None
    dq: torch.Tensor | None = None
    dk: torch.Tensor | None = None
    dv: torch.Tensor | None = None
    dscores: torch.Tensor | None = None
    grad_lse: torch.Tensor | None = None
    changed: Callable[[torch.Tensor], tuple[torch.Tensor, ...]] | None = None
    """Computes scores, and their slopes, from the scaled products, if the problem has an expression for them."""
    random: torch.Tensor | None = None
    indices: Mapping[str, torch.Tensor] = field(default_factory=dict)
    """The integer tensors that describe the sequences (attention/layout.py)."""
    count: int = 0
    rows: int = 0
    keys: int = 0
    """`count` is the number of sequences; `rows` and `keys` are the most that one sequence has."""

    @property
    def gradients(self) -> tuple[torch.Tensor, ...]:
        """Where the gradients of q, k and v are written, and that of the scores if it is wanted."""
        assert self.dq is not None and self.dk is not None and self.dv is not None
        return (self.dq, self.dk, self.dv, *([self.dscores] if self.dscores is not None else []))

    @property
    def left(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The backward pass's further inputs: out, its lse and its gradient."""
        assert self.saved is not None and self.grad is not None
        return self.out, self.saved, self.grad


def operands(problem: AttentionProblem, args: Sequence[Any]) -> Operands:
    """Flat arguments as tensors with their own sizes and strides."""
    named: dict[str, Any] = {}
    for tensor, place in zip(args, _places(problem), strict=False):
        if place is None or tensor is None:
            continue
        name, extents, strides = place
        shape = tuple([args[k] for k in extents])
        if strides is None:
            named[name] = tensor if tensor.shape == shape else tensor.view(shape)
            continue
        steps = tuple([args[k] for k in strides])
        alike = tensor.shape == shape and tensor.stride() == steps
        named[name] = tensor if alike else tensor.as_strided(shape, steps, tensor.storage_offset())
    if problem.dropout is not None:
        named["random"] = args[[tensor.name for tensor in problem.tensors].index("random")]
    if problem.scores is not None:
        named["changed"] = functools.partial(_changed, problem, args)
    if problem.layout is not None:
        named["indices"] = {name: named.pop(name) for name in INDICES if name in named}
        first = len(problem.tensors)
        named["count"], named["rows"], named["keys"] = (args[first + SIZES.index(name)] for name in ("B", "Mq", "Mkv"))
    return Operands(**named)


def _changed(problem: AttentionProblem, args: Sequence[Any], products: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """The scores of these products, and their slopes if the problem has them, by torch operators; in float64 if the products
    are."""
    assert problem.scores is not None
    tensors = {tensor.name: value for tensor, value in zip(problem.tensors, args, strict=False)}
    values = dict(zip(problem.symbols, args[len(problem.tensors) :], strict=True))
    precision = torch.float64 if products.dtype == torch.float64 else None
    return changed_scores(problem.scores.loop, products, tensors, values, precision)


def outputs(problem: AttentionProblem) -> tuple[int, ...]:
    """The numbers of the tensors that a call computes."""
    return tuple(k for k, tensor in enumerate(problem.tensors) if tensor.role == "out")


def laid_out_for(problem: AttentionProblem, args: Sequence[Any], results: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The results of a call in the memory layout of its outputs, which may be None."""
    found: list[torch.Tensor] = []
    for number, result in zip(outputs(problem), results, strict=True):
        place = _places(problem)[number]
        assert place is not None
        sizes = [args[k] for k in place[1]]
        dense = [*itertools.accumulate(sizes[:0:-1], operator.mul, initial=1)][::-1]
        strides = dense if place[2] is None else [args[k] for k in place[2]]
        found.append(laid_out(result, sizes, strides, problem.tensors[number].dtype))
    return found


@functools.lru_cache(1024)
def _places(problem: AttentionProblem) -> list[tuple[str, list[int], list[int] | None] | None]:
    """For each tensor, its name and the positions of its sizes and strides among the flat arguments; None for tensors of the
    scores, and for `random`."""
    at = {name: k for k, name in enumerate(problem.size_names, len(problem.tensors))}
    places: list[tuple[str, list[int], list[int] | None] | None] = []
    for tensor in problem.tensors:
        if not problem.extents(tensor.name):
            places.append(None)
            continue
        extents = [at[extent] for extent in problem.extents(tensor.name)]
        strided = problem.axes(tensor.name)
        places.append(
            (tensor.name, extents, [at[f"{tensor.name}_stride_{axis}"] for axis in strided] if strided else None)
        )
    return places


def settings(problem: AttentionProblem) -> dict[str, Any]:
    """The keyword arguments of `ir.attention.attend` for this problem."""
    fill = {"fill": problem.bias.fill} if problem.bias is not None else {}
    return {
        "scale": problem.scale,
        "causal": problem.causal.value,
        "empty_is_0": problem.empty_is_0,
        "window": problem.window,
        **fill,
    }


def run_attention(problem: AttentionProblem, given: Operands, precision: torch.dtype | None = None) -> None:
    """Run the attention or its backward pass by torch operators, and write the results to the output operands."""
    how = {**settings(problem), "precision": precision, "bias": given.bias}
    if problem.layout is not None and problem.backward:
        attend_sequences_backward(
            given.q, given.k, given.v, *given.left, given.gradients[:3], given.indices, given.count, **how
        )
        return
    if problem.layout is not None:
        placed = given.indices, given.count, given.keys
        attend_sequences(given.q, given.k, given.v, given.out, given.lse, *placed, **how, scores=given.changed)
        return
    write(problem, given, computed(problem, given, precision))


def computed(problem: AttentionProblem, given: Operands, precision: torch.dtype | None = None) -> Sequence[torch.Tensor]:
    """The results of an attention without sequences of varying length, or of its backward pass, by torch operators: in the order
    of the problem's outputs."""
    how = {**settings(problem), "precision": precision, "bias": given.bias}
    how["factors"] = factors_of(problem.dropout, given.random, (*given.q.shape[:3], given.k.shape[2]))
    if problem.backward:
        how |= {"scores": given.changed, "grad_lse": given.grad_lse, "with_changes": problem.changes}
        return attend_backward(given.q, given.k, given.v, *given.left, **how)
    return attend(given.q, given.k, given.v, **how, scores=given.changed)[: 1 + problem.lse]


def write(problem: AttentionProblem, given: Operands, results: Sequence[torch.Tensor]) -> None:
    """Copies results, in the order of the problem's outputs, to those of a call."""
    forward = (given.out, given.lse) if given.lse is not None else (given.out,)
    for place, result in zip(given.gradients if problem.backward else forward, results, strict=True):
        place.copy_(result)


def reference(problem: AttentionProblem) -> Callable[..., None]:
    """Attention on flat arguments, in float64 if these were widened, else in the accumulator's dtype."""

    def run(*args: Any) -> None:
        run_attention(problem, operands(problem, args), precision_of(problem.tensors, args))

    return run


def positions(problem: AttentionProblem) -> tuple[sympy.Expr, ...]:
    """Upper bounds of all tensor offsets that a kernel computes, as expressions in its integers."""
    ends = list(reaches(problem.scores)) if problem.scores is not None else []
    for tensor in problem.tensors:
        sizes = [symbol(name) for name in problem.extents(tensor.name)]
        if axes := problem.axes(tensor.name):
            ends.append(sum(n * symbol(f"{tensor.name}_stride_{a}") for n, a in zip(sizes, axes, strict=True)))
        elif sizes:
            ends.append(sympy.Mul(*sizes))
    if problem.dropout is not None:  # weights are numbered
        ends.append(sympy.Mul(*map(symbol, ("B", "Hq", "Mq", "Mkv"))))
    return tuple(ends)


def make_args(problem: AttentionProblem, size: Mapping[str, int], target: torch.device | None = None) -> list[Any]:
    """Random flat arguments for the given sizes, on `target` or the CPU.

    In a backward problem, `out` and `saved` are the results of the forward pass. Strides that `size` lacks are row-major.
    """
    size = problem.layout.completed(size) if problem.layout is not None else size
    full = {**dict.fromkeys(problem.size_names, 1), **problem.dense_strides(size), **size}
    tensors = []
    loaded = {**_loaded(problem, full, target), **_indices(problem, full, target)}
    if problem.dropout is not None:
        loaded["random"] = noise.integers(0, 1 << 40, 2, torch.int64, target)
    for tensor in problem.tensors:
        if tensor.name in loaded:
            tensors.append(loaded[tensor.name])
            continue
        sizes = [full[name] for name in problem.extents(tensor.name)]
        count = 1
        if axes := problem.axes(tensor.name):
            strides = [full[f"{tensor.name}_stride_{axis}"] for axis in axes]
            count += sum(max(0, n - 1) * stride for n, stride in zip(sizes, strides, strict=True))
        else:
            count = math.prod(sizes)
        tensors.append(_random(count, tensor.dtype, target))
    args = [*tensors, *[full[name] for name in problem.size_names]]
    if problem.backward:
        given = operands(problem, args)
        forward = replace(problem, backward=False, lse=True, changes=False)
        run_attention(forward, replace(given, out=given.left[0], lse=given.left[1]))
    return args


def _indices(
    problem: AttentionProblem, size: Mapping[str, int], target: torch.device | None
) -> dict[str, torch.Tensor]:
    """Integer tensors for the sequences. The first sequence has the most rows and keys; the others share the rest."""
    if problem.layout is None:
        return {}
    count, indices = size["B"], {}
    keys = _lengths(count, size["Mkv"], size["Tk"]) if "Tk" in size else [size["Mkv"]] * count
    if "Slots" in size:
        keys = [min(each, size["Slots"] * size["Page"]) for each in keys]
    lengths = {"k_starts": _starts(keys), "k_used": [-(-n * (count - b) // max(1, count)) for b, n in enumerate(keys)]}
    if "Tq" in size:
        lengths["q_starts"] = _starts(_lengths(count, size["Mq"], size["Tq"]))
    for name, dtype in problem.layout.indices:
        if name == "table":
            indices[name] = noise.integers(0, max(1, size["Pages"]), count * size["Slots"], dtype, target)
        else:
            numbers = torch.tensor(lengths[name], dtype=dtype, device=target)
            step = size[f"{name}_stride_{problem.axes(name)}"]
            indices[name] = numbers.repeat_interleave(step) if step > 1 else numbers
    return indices


def _lengths(count: int, most: int, total: int) -> list[int]:
    """`count` lengths up to `most` with the sum `total`."""
    first = min(most, total)
    rest, left = max(0, count - 1), total - first
    others = [min(most, left * (k + 1) // rest - left * k // rest) for k in range(rest)]
    return [first, *others] if count else []


def _starts(lengths: Sequence[int]) -> list[int]:
    return list(itertools.accumulate(lengths, initial=0))


def _loaded(
    problem: AttentionProblem, size: Mapping[str, int], target: torch.device | None
) -> Mapping[str, torch.Tensor]:
    """Random tensors for those that the scores load."""
    if problem.scores is None:
        return {}
    tensors, loop = problem.scores.tensors, problem.scores.loop
    values_made = (TensorArg(store.buffer, torch.float32, "out") for store in loop.stores)
    given = LoopKernel(loop, (*tensors, *values_made), problem.symbols)
    values = {each: size[each.name] for each in problem.symbols}
    extents, ends = examples.lengths(given, values), examples.index_ends(given, values)
    divisors = examples.divisors(given)
    loaded = {}
    for tensor in tensors:
        count, least = max(1, extents[tensor.name]), int(tensor.name in divisors)
        whole = not tensor.dtype.is_floating_point and tensor.dtype != torch.bool
        end = min(max(least + 1, ends.get(tensor.name, size["Mkv"] + 1)), 1 + torch.iinfo(tensor.dtype).max) if whole else 0
        numbers = noise.integers(least, end, count, tensor.dtype, target) if whole else _random(count, tensor.dtype, target)
        loaded[tensor.name] = numbers
    return loaded


def _random(count: int, dtype: torch.dtype, target: torch.device | None) -> torch.Tensor:
    """Random numbers; three in four booleans are true."""
    if dtype == torch.bool:
        return noise.integers(0, 4, count, torch.int64, target) > 0
    return noise.normal(count, target).to(dtype)
