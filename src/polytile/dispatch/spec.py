"""What a MultiKernel computes and takes, apart from how: its arguments, what its choice depends on, and its
reference."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from polytile.candidates.roundings import Rounded
from polytile.dispatch.plan_conditions import team
from polytile.ir.program import CPU as CPU_DEVICE
from polytile.problem import Problem
from polytile.runtime import device, regime
from polytile.runtime.arguments import CPU, CUDA
from polytile.runtime.formula import Formula, evaluate
from polytile.schedule.facts import Facts
from polytile.tuning.sample import Sampler
from polytile.tuning.tolerance import coarseness

WIDE = "wide"
"""The condition that some position needs 64 bits (schedule/facts.py)."""

POWER = "{}=2^k"
"""The condition that a size is a power of two; the last one of its half octave (runtime/regime.py), so a regime where it holds
has that value alone."""

DIVISOR = "{}%{{}}"
"""The condition that a power of two below 16, which is its value, divides an integer."""

ROLES = ("in", "out", "inout", "scratch")
"""What a kernel does with a tensor: only reads it; writes all of it and reads nothing of it; both; uses it as it
likes."""


@dataclass(frozen=True)
class ArgInfo:
    """One tensor argument: its name in messages, its element type, and its role, one of ROLES; what a kernel rounds on its way
    there."""

    name: str
    dtype: torch.dtype
    role: str = "in"
    rounded: Rounded | None = None

    def __post_init__(self) -> None:
        if self.role not in ROLES:
            raise ValueError(f"argument {self.name!r} has the role {self.role!r}; roles are {', '.join(ROLES)}.")


@dataclass(frozen=True)
class KernelSpec:
    """A kernel as its callers see it. All sub-kernels of a MultiKernel share one.

    The kernel is called with `args` tensors (None where an optional one is absent) and then one int for each of `size_names`.

    name            what it is called in messages, plans and the option `force`
    family, kernel  of its Problems: what kind of work, and the digest of the work itself
    size_keys       the regime code of each int (runtime/regime.py): what has the code 0 takes no part in any choice, so an int
                    derived from others should have it
    tensor_keys     the same of each tensor; empty: nothing about tensors matters
    layouts         what else about the arguments tells problems apart
    reduction       names of the sizes (or numbers) whose product is the number of terms that an output element sums
    reduction_hint  how the reduction runs through memory: "inner", "outer" or ""
    source_ops      the operators that it came from, for people
    checks          the sentences for run-time checks 1, 2, ...
    conditions      named formulas of the integers, 0 where the condition does not hold: part of the regime and of the problem; a
                    name with `{}` is said with the formula's value
    target          where the tensors are and the kernel runs
    device          the fingerprint of that device; empty: this machine's processor
    reference       `reference(*args)` is called like the kernel, with float64 in place of other floating types, and writes the
                    out and inout tensors; it must be right, not fast
    sampler         what stands in for the reference where all results would take too long or too much memory (tuning/sample.py)
    make_args       `make_args(sizes)` makes the flat arguments for given sizes by name, some of which may be missing where others
                    imply them; without it nothing can be tuned ahead of a call
    """

    name: str
    family: str
    kernel: str
    args: tuple[ArgInfo, ...]
    size_names: tuple[str, ...]
    size_keys: tuple[int, ...]
    tensor_keys: tuple[int, ...] = ()
    layouts: tuple[str, ...] = ()
    reduction: tuple[str | int, ...] = ()
    reduction_hint: str = ""
    source_ops: tuple[str, ...] = ()
    checks: tuple[str, ...] = ()
    conditions: tuple[tuple[str, Formula], ...] = ()
    target: torch.device = CPU_DEVICE
    device: str = ""
    reference: Callable[..., None] | None = field(default=None, compare=False, repr=False)
    make_args: Callable[[Mapping[str, int]], Sequence[Any]] | None = field(default=None, compare=False, repr=False)
    sampler: Sampler | None = field(default=None, compare=False, repr=False)

    def __post_init__(self) -> None:
        if len(self.size_names) != len(self.size_keys):
            raise ValueError(
                f"kernel {self.name!r} has {len(self.size_names)} integer arguments and {len(self.size_keys)} regime "
                "codes; each integer needs one."
            )
        if self.tensor_keys and len(self.tensor_keys) != len(self.args):
            raise ValueError(
                f"kernel {self.name!r} has {len(self.args)} tensor arguments and {len(self.tensor_keys)} tensor codes; "
                "give one for each or none at all."
            )

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(arg.name for arg in self.args)

    @property
    def roles(self) -> tuple[str, ...]:
        return tuple(arg.role for arg in self.args)

    def split(self, args: Sequence[Any]) -> tuple[tuple[Any, ...], tuple[int, ...]]:
        """(tensors, ints) of flat arguments."""
        return tuple(args[: len(self.args)]), tuple(args[len(self.args) :])

    def sizes(self, ints: Sequence[int]) -> dict[str, int]:
        """Every integer argument by name."""
        return dict(zip(self.size_names, ints, strict=True))

    def deciding(self, ints: Sequence[int]) -> tuple[tuple[str, int], ...]:
        """The integers that a choice may depend on, by name."""
        given = zip(self.size_names, ints, self.size_keys, strict=True)
        return tuple((name, size) for name, size, code in given if code in (regime.BUCKET, regime.EXACT))

    def bucketed(self) -> frozenset[str]:
        """Names of the sizes of which only the regime bucket matters."""
        return frozenset(
            name for name, code in zip(self.size_names, self.size_keys, strict=True) if code == regime.BUCKET
        )

    def flags(self, ints: Sequence[int], pointers: Sequence[int] = ()) -> tuple[str, ...]:
        """Facts about this call that kernels care about: "K%16" for sizes above 8 that 16 divides, "x@64" for tensors
        aligned to 64 bytes (those that `tensor_keys` asks about; all of them where no pointers are given), and the names
        of the conditions that hold."""
        divisible = [f"{name}%16" for name in self._divisible(ints)]
        aligned = [f"{name}@{alignment}" for name, alignment in self._alignments(pointers).items()]
        return (*divisible, *aligned, *self._holding(self._said(ints)))

    def _alignments(self, pointers: Sequence[int]) -> dict[str, int]:
        """Of how many bytes the address of a tensor's data is a multiple, of those for which it matters and is more than one."""
        given = pointers or (0,) * len(self.tensor_keys)
        asked = [(n, code, p) for n, code, p in zip(self.names, self.tensor_keys, given, strict=False) if code != regime.ANY]
        found = {name: regime.alignment(code, regime.tensor_word(code, pointer)) for name, code, pointer in asked}
        return {name: alignment for name, alignment in found.items() if alignment > 1}

    def _divisible(self, ints: Sequence[int]) -> list[str]:
        """Names of the integers that 16 divides all over the regime, those with one value there left out."""
        given = zip(self.size_names, ints, self.size_keys, strict=True)
        return [
            name
            for name, size, code in given
            if size % 16 == 0 and (code == regime.DIVISIBLE or (code == regime.BUCKET and size > regime.EXACT_UP_TO))
        ]

    def _said(self, ints: Sequence[int]) -> list[int]:
        """The values of the conditions."""
        return [evaluate(formula, ints) for _, formula in self.conditions]

    def _holding(self, said: Sequence[int]) -> list[str]:
        """The names of the conditions that hold, by their values."""
        return [name.format(value) for (name, _), value in zip(self.conditions, said, strict=True) if value]

    def _powers(self, holding: Iterable[str]) -> frozenset[str]:
        """Names of the bucketed sizes that are known to be powers of two where these conditions hold."""
        return frozenset(name for name in self.bucketed() if POWER.format(name) in holding)

    def _ends(self, name: str, word: int, said: Sequence[int]) -> tuple[int, ...]:
        """Smallest and largest value of the bucketed size `name` that has this word where the conditions' values are `said`."""
        divisors = [
            (formula, value)
            for (condition, formula), value in zip(self.conditions, said, strict=True)
            if condition == DIVISOR.format(name)
        ]

        def alike(size: int) -> bool:
            return all(evaluate(formula, [size] * len(self.size_names)) == value for formula, value in divisors)

        ends = regime.ends(word, alike)
        return ends[-1:] if name in self._powers(self._holding(said)) else ends

    def facts(self, ints: Sequence[int], pointers: Sequence[int] = ()) -> Facts:
        """What code for the regime of this call may take for granted; tensors count as aligned where no pointers are
        given."""
        given = zip(self.size_names, ints, self.size_keys, strict=True)
        holding = frozenset(self._holding(self._said(ints)))
        powers = self._powers(holding)
        exact = [
            (name, size)
            for name, size, code in given
            if code == regime.EXACT or (code == regime.BUCKET and size <= regime.EXACT_UP_TO) or name in powers
        ]
        alignments = self._alignments(pointers)
        aligned = frozenset(name for name, alignment in alignments.items() if alignment >= 16)
        divisors = {DIVISOR.format(name).format(by): (name, by) for name in self.size_names for by in (2, 4, 8)}
        others = holding - {WIDE, *map(POWER.format, self.size_names), *divisors}
        divisible = frozenset(self._divisible(ints)) - powers
        free = self.bucketed() - {name for name, _ in exact}
        below_16 = [divisors[said] for said in sorted(holding & divisors.keys()) if divisors[said][0] not in dict(exact)]
        below_16 += [(name, alignment) for name, alignment in alignments.items() if alignment < 16]
        return Facts(divisible, aligned, WIDE in holding, tuple(exact), others, tuple(below_16), self._least(ints, free))

    def _least(self, ints: Sequence[int], free: frozenset[str]) -> tuple[tuple[str, int], ...]:
        """The smallest values in the regime of those `free` sizes that are lengths of rows, which are asked whether they are
        powers of two."""
        asked = {condition for condition, _ in self.conditions}
        rows = [name for name in self.size_names if name in free and POWER.format(name) in asked]
        return tuple((name, regime.bounds(regime.bucket(self.sizes(ints)[name]))[0]) for name in rows)

    @property
    def device_type(self) -> int:
        """torch's number for the type of `target`."""
        return CUDA if self.target.type == "cuda" else CPU

    def problem(self, ints: Sequence[int], pointers: Sequence[int] = ()) -> Problem:
        """The Problem of a call with these integers: what its choice may depend on and nothing else.

        `layouts` ends with the flags and, on a CPU, the number of threads that a kernel may use, so that problems which
        differ in sizes alone are in the same kind of regime.
        """
        return Problem(
            self.family,
            self.kernel,
            self.deciding(ints),
            tuple(str(arg.dtype).removeprefix("torch.") for arg in self.args),
            (*self.layouts, *self.flags(ints, pointers), *team(self.target.type)),
            self.device or device.fingerprint(),
        )

    def words(self, ints: Sequence[int], pointers: Sequence[int] = ()) -> tuple[int, ...]:
        """The words of the regime of a call (runtime/regime.py); tensors count as aligned where no pointers are given."""
        given = pointers or (0,) * len(self.tensor_keys)
        formulas = [formula for _, formula in self.conditions]
        return regime.words_of(self.size_keys, ints, self.tensor_keys, given, formulas)

    def words_in(self, key: int) -> tuple[int, ...]:
        """The words of a key that the dispatcher of this kernel has made."""
        return regime.unpack(key, regime.count(self.size_keys, self.tensor_keys, [code for _, code in self.conditions]))

    def is_part(self, words: Sequence[int]) -> bool:
        """Whether these are the words of a part of a regime."""
        codes = [code for code in self.size_keys if code != regime.IGNORE]
        return any(code == regime.BUCKET and regime.is_part(w) for code, w in zip(codes, words, strict=False))

    def is_single(self, words: Sequence[int]) -> bool:
        """Whether these are the words of single sizes, taken out of their regime."""
        return regime.holds_single(words, self.size_keys)

    def part(self, words: Sequence[int], sizes: Mapping[str, int]) -> tuple[int, ...]:
        """The words of that part of a regime that has these sizes, of which only the bucketed ones are asked."""
        return self._within(words, sizes, regime.part)

    def single(self, words: Sequence[int], sizes: Mapping[str, int]) -> tuple[int, ...]:
        """The words of these sizes alone, which are in the regime or the part of one that has `words`."""
        return self._within(words, sizes, regime.single)

    def _within(self, words: Sequence[int], sizes: Mapping[str, int], word: Callable[[int], int]) -> tuple[int, ...]:
        bucketed = [
            sizes[name] for name, code in zip(self.size_names, self.size_keys, strict=True) if code == regime.BUCKET
        ]
        return regime.within(words, self.size_keys, bucketed, word)

    def whole(self, words: Sequence[int]) -> tuple[int, ...]:
        """The words of the regime that these are, or that they are a part or single sizes of."""
        return regime.whole_of(words, self.size_keys)

    def regime(self, words: Sequence[int]) -> str:
        """A regime, or a part of one, as text, the same on every machine: "M=7 N=512..723%16 x@64". What plan files
        name decisions by."""
        left, said = iter(words), []
        for name, code in zip(self.size_names, self.size_keys, strict=True):
            word = next(left) if code != regime.IGNORE else 0
            if code == regime.EXACT or (code == regime.BUCKET and word <= regime.EXACT_UP_TO):
                said.append(f"{name}={word}")
            elif code == regime.BUCKET and regime.is_single(word):
                said.append(f"{name}={regime.bounds(word)[0]}")
            elif code == regime.BUCKET:
                low, high = regime.bounds(word)
                said.append(f"{name}={low}..{high}" + ("%16" if regime.divisible(word) else ""))
            elif code == regime.DIVISIBLE and word:
                said.append(f"{name}%16")
        for name, code in zip(self.names, self.tensor_keys, strict=False):
            if code != regime.ANY and (alignment := regime.alignment(code, next(left))) > 1:
                said.append(f"{name}@{alignment}")
        return " ".join([*said, *self._holding(tuple(left))])

    def corners(self, ints: Sequence[int]) -> list[dict[str, int]]:
        """The sizes at the ends of the regime: every bucketed size at its smallest and at its largest, in all
        combinations (with more than three of them: all smallest, all largest). Other integers stay as they are."""
        free, said = self.bucketed(), self._said(ints)
        given = zip(self.size_names, ints, strict=True)
        ends = [self._ends(name, regime.bucket(size), said) if name in free else (size,) for name, size in given]
        if sum(len(end) > 1 for end in ends) > 3:
            return [self.sizes([end[0] for end in ends]), self.sizes([end[-1] for end in ends])]
        return [self.sizes(corner) for corner in itertools.product(*ends)]

    def ends(self, words: Sequence[int]) -> tuple[dict[str, int], dict[str, int]]:
        """The bucketed sizes of a regime, or of a part of one: all at their smallest, and all at their largest."""
        codes = [(name, code) for name, code in zip(self.size_names, self.size_keys, strict=True) if code]
        said = words[len(words) - len(self.conditions) :]
        given = zip(codes, words, strict=False)
        bucketed = {n: self._ends(n, word, said) for (n, code), word in given if code == regime.BUCKET}
        return {n: end[0] for n, end in bucketed.items()}, {n: end[-1] for n, end in bucketed.items()}

    def reduction_length(self, ints: Sequence[int]) -> int:
        """Number of terms that one output element sums."""
        return self._product(self.reduction, ints)

    def coarse(self, ints: Sequence[int]) -> tuple[float, ...]:
        """How far each tensor may be off for what is rounded on its way, relative as in `tuning.tolerance`."""
        ways = [arg.rounded for arg in self.args]
        return tuple(coarseness(way.dtype, self._product(way.terms, ints)) if way is not None else 0.0 for way in ways)

    def _product(self, terms: Sequence[str | int], ints: Sequence[int]) -> int:
        sizes = self.sizes(ints)
        return math.prod(sizes[part] if isinstance(part, str) else part for part in terms)


__all__ = ["DIVISOR", "POWER", "ROLES", "WIDE", "ArgInfo", "KernelSpec"]
