"""Whether a program's results are right: held against float64, beside eager's own error and the program's conditioning.

Conditioning is seen by moving each input and parameter by a rounding of its type, up or down, and computing in float64 again: a
sum that cancels then moves by what its terms' roundings come to.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from benchmarks.programs.program import SEED, Function, Program

TIMES, ROUNDINGS = 4.0, 16.0
"""Of eager's error and of what the inputs' roundings come to, and of a rounding of the largest element, a result may be off."""
LARGE = 1 << 30
"""Elements of inputs above which they are not moved: it would take as much memory again."""


def run(program: Program, call: Callable[..., Any], function: Function, inputs: Sequence[Any]) -> list[Tensor]:
    """The results of one call, from the suite's seed."""
    torch.manual_seed(SEED)
    return step(program, call, function, inputs)


def step(program: Program, call: Callable[..., Any], function: Function, inputs: Sequence[Any]) -> list[Tensor]:
    """The results of one call; in training the loss and the gradients, of parameters and of inputs."""
    results = [leaf for leaf in tree_leaves(call(*inputs)) if isinstance(leaf, Tensor)]
    if not program.training:
        return results
    leaves = [x for x in (*inputs, *_parameters(function)) if isinstance(x, Tensor) and x.requires_grad]
    return [results[0].detach(), *torch.autograd.grad(results[0], leaves, materialize_grads=True)]


def _parameters(function: Function) -> Iterator[Tensor]:
    if isinstance(function, nn.Module):
        yield from function.parameters()


@dataclass(frozen=True)
class Reference:
    """What eager gives, what is exact, and how far each result may be from it."""

    eager: list[Tensor]
    exact: list[Tensor]
    own: list[float]
    allowed: list[float]
    notes: str = ""

    def wrong(self, got: Sequence[Tensor]) -> str:
        """What is wrong with these results; "" where nothing is."""
        if len(got) != len(self.eager):
            return f"{len(got)} results for {len(self.eager)}"
        for k, (mine, eager, exact) in enumerate(zip(got, self.eager, self.exact, strict=True)):
            if (mine.shape, mine.dtype) != (eager.shape, eager.dtype):
                return f"result {k} is {mine.dtype} {tuple(mine.shape)}, eager's {eager.dtype} {tuple(eager.shape)}"
            if eager.is_floating_point() and not torch.equal(mine.isfinite(), eager.isfinite()):
                return f"result {k} is infinite or NaN elsewhere than eager's"
            off = distance(mine, exact)
            if not off <= self.allowed[k]:
                return f"result {k} is off by {off:.2g}; eager by {self.own[k]:.2g}, allowed are {self.allowed[k]:.2g}"
        return ""

    def strides(self, got: Sequence[Tensor]) -> str:
        """Whose strides are not eager's; sizes of 1 have none."""
        for k, (mine, eager) in enumerate(zip(got, self.eager, strict=False)):
            ours, theirs = ([s for n, s in zip(t.shape, t.stride(), strict=True) if n > 1] for t in (mine, eager))
            if ours != theirs and mine.numel():
                return f"result {k} has strides {mine.stride()}, eager's {eager.stride()}"
        return ""


def distance(a: Tensor, b: Tensor) -> float:
    """The largest difference of finite elements; of integers and flags the part of the elements that differ."""
    if not a.numel():
        return 0.0
    if not b.is_floating_point():
        return float((a != b).double().mean())
    off = (a.double() - b.double()).abs()
    return float(off.nan_to_num(0.0, 0.0, 0.0).max())


def reference(program: Program, function: Function, inputs: Sequence[Any]) -> Reference:
    """Runs the program in eager, in float64 and, with inputs moved, in float64 again."""
    eager = run(program, function, function, inputs)
    if program.random:  # its stream in float64 is another one
        moved = run(program, *_twice(_with(function, inputs, _moved)))
        return _reference(program, eager, eager, moved, "")
    try:
        wide, given = _with(function, inputs, _double)
        exact = run(program, wide, wide, given)
    except RuntimeError as error:
        return _reference(program, eager, eager, eager, f"no float64: {str(error)[:80]}")
    small = sum(x.numel() for x in inputs if isinstance(x, Tensor)) < LARGE
    moved = run(program, *_twice(_with(function, inputs, lambda x: _double(_moved(x))))) if small else exact
    return _reference(program, eager, exact, moved, "")


def _twice(pair: tuple[Function, list[Any]]) -> tuple[Function, Function, list[Any]]:
    return pair[0], pair[0], pair[1]


def _reference(
    program: Program, eager: list[Tensor], exact: list[Tensor], moved: list[Tensor], notes: str
) -> Reference:
    own, allowed = [], []
    for mine, right, shaken in zip(eager, exact, moved, strict=True):
        own.append(distance(mine, right))
        least = TIMES * (own[-1] + distance(shaken, right))
        if mine.is_floating_point() and mine.numel():
            largest = float(right.abs().double().nan_to_num(0.0, 0.0, 0.0).max())
            least += ROUNDINGS * torch.finfo(mine.dtype).eps * max(largest, program.scale)
        allowed.append(least)
    return Reference(eager, exact, own, allowed, notes)


def _with(function: Function, inputs: Sequence[Any], change: Callable[[Tensor], Tensor]) -> tuple[Function, list[Any]]:
    """The program with all its numbers changed, which stay leaves of the gradient."""

    def changed(x: Any) -> Any:
        if not isinstance(x, Tensor) or not x.is_floating_point():
            return x
        return change(x.detach()).requires_grad_(x.requires_grad)

    if isinstance(function, nn.Module):
        function = copy.deepcopy(function)
        made: dict[nn.Parameter, nn.Parameter] = {}  # some belong to several modules
        for module in function.modules():
            for name, parameter in list(module._parameters.items()):
                if parameter is not None:
                    if parameter not in made:
                        made[parameter] = nn.Parameter(change(parameter.detach()), parameter.requires_grad)
                    module._parameters[name] = made[parameter]
            for name, buffer in list(module._buffers.items()):
                if buffer is not None and buffer.is_floating_point():
                    module._buffers[name] = change(buffer)
    return function, [changed(x) for x in inputs]


def _double(x: Tensor) -> Tensor:
    return x.double()


def _moved(x: Tensor) -> Tensor:
    """Each element moved by a rounding of its type."""
    signs = (
        torch.randint(0, 2, x.shape, device=x.device, generator=torch.Generator(x.device).manual_seed(SEED + 1)) * 2 - 1
    )
    return x + x * signs.to(x.dtype) * torch.finfo(x.dtype).eps


__all__ = ["Reference", "distance", "reference", "run", "step"]
