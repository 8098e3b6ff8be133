"""The accuracy gate for problems that are too large for a reference of all results: it compares some of them.

It compares the results at the points of a few boxes of the loop's grid: at the beginning, in the middle, and at the end, where
tails are. Everywhere else results must have been written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from polytile.tuning.clones import Clones, as_integers, poison_of
from polytile.tuning.distance import compare
from polytile.tuning.gate import Gate, Verdict

LOOKED_AT = 1 << 24
"""Elements that are looked at together for what was not written: 16 MiB of truths."""


@dataclass(frozen=True)
class Sample:
    """What is expected of some elements of written argument number `position`: those of a view of these strides at `offset`
    elements from its first."""

    position: int
    strides: tuple[int, ...]
    offset: int
    expected: torch.Tensor

    def elements_of(self, args: Sequence[Any]) -> torch.Tensor:
        """These elements of the argument, a view."""
        tensor = args[self.position]
        return tensor.as_strided(self.expected.shape, self.strides, tensor.storage_offset() + self.offset)


Sampler = Callable[[Sequence[Any], "torch.dtype | None"], "list[Sample] | None"]
"""(flat arguments of a kernel, type to compute in or None for their own) → samples of what it writes; None where its results
cannot be told element by element."""


class SampledGate(Gate):
    """Like Gate, for `samples` that `sampler` has drawn in float64. What else is wrong with the arguments, such as an index out
    of range, candidates say."""

    def __init__(
        self, args: Sequence[Any], roles: Sequence[str], names: Sequence[str], sampler: Sampler, samples: list[Sample],
        reduction: int = 1, coarse: Sequence[float] = (),
    ) -> None:  # fmt: skip
        super().__init__(args, roles, names, None, reduction, coarse=coarse)
        self.unavailable = "some of the results are compared"
        self._samples, self._own_samples = samples, sampler(args, None) or []

    @cached_property
    def clones(self) -> Clones:
        """The caller's own outputs: cloning what is large takes as long as a call of it."""
        return Clones(self._args, self._roles, lent_outputs=True)

    def check(
        self, run: Callable[[tuple[Any, ...]], None], clones: Clones | None = None, again_within: float | None = None
    ) -> Verdict:
        """Like Gate.check; nothing runs twice."""
        return super().check(run, clones, again_within=0.0)

    def _verdict(self, clones: Clones) -> Verdict:
        if clones.damage(inputs=False) is not None:
            return Verdict(False, None, "wrote outside of its arguments")
        for position in self._written:
            if self._roles[position] == "out" and _unwritten(clones.args[position]):
                return Verdict(False, None, f"left elements of argument {self._names[position]!r} as they were")
        verdict = self._compared(self._samples, clones, 1)
        if verdict.ok:
            return verdict
        as_well = bool(self._own_samples) and self._compared(self._own_samples, clones, 2).ok
        return Verdict(True, verdict.max_error) if as_well else verdict

    def _compared(self, samples: Sequence[Sample], clones: Clones, leeway: int) -> Verdict:
        worst = 0.0
        for sample in samples:
            place = f"argument {self._names[sample.position]!r}"
            allowed = leeway * self._allowed(sample.position)
            error, why = compare(sample.elements_of(clones.args), sample.expected)
            worst = max(worst, error)
            if why or error > allowed:
                told = why or f"is off by {error:.2g} of its values; {allowed:.2g} is allowed"
                return Verdict(False, worst, f"{place} {told}")
        return Verdict(True, worst)


def _unwritten(tensor: torch.Tensor) -> bool:
    """Whether an element still holds the bytes that it was filled with before: a NaN that no arithmetic makes. Of integers, that
    may be any number, none is said to."""
    if not tensor.dtype.is_floating_point or tensor.itemsize == 1 or not tensor.numel():
        return False
    assert poison_of(tensor.dtype) == 0xFF
    numbers = as_integers(tensor)
    longest = max(range(numbers.dim()), key=lambda dimension: numbers.shape[dimension], default=0)
    parts = numbers.chunk(-(-numbers.numel() // LOOKED_AT), longest) if numbers.dim() else (numbers,)
    return any(bool((part == -1).any()) for part in parts)
