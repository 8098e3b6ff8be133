"""The key fields that tell a kernel's regimes apart, and the facts that they stand for.

A call's key is a packed integer (runtime/regime.py). Keys translates a call into the fields of its key, the fields into the
Regime that people and plan files name, and a regime into the Facts that its code may assume.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from polytile.facts import Aligned, Between, Divisible, Fact, MultiplesBetween, PowerOfTwo, Regime, Size, Wide
from polytile.runtime import regime
from polytile.runtime.formula import Formula, evaluate
from polytile.schedule.facts import Facts

KeyFields = tuple[int, ...]


@dataclass(frozen=True)
class PowerBelow16:
    """The question which power of two below 16 divides this integer. The answer is a Divisible."""

    name: str


@dataclass(frozen=True)
class Condition:
    """A formula of the integers whose value is a key field. If the value is not 0, the fact `asked` holds; for PowerBelow16, it
    is Divisible by the value."""

    asked: Fact | PowerBelow16
    formula: Formula

    def fact(self, value: int) -> Fact | None:
        """What holds where the formula has this value."""
        if not value:
            return None
        return Divisible(self.asked.name, value) if isinstance(self.asked, PowerBelow16) else self.asked


@dataclass(frozen=True)
class Keys:
    """The names of a kernel's integers and tensors, with their regime codes (runtime/regime.py), and its conditions. Without
    tensor codes nothing about tensors matters. Pointers that are not given count as aligned."""

    size_names: tuple[str, ...]
    size_codes: tuple[int, ...]
    tensor_names: tuple[str, ...] = ()
    tensor_codes: tuple[int, ...] = ()
    conditions: tuple[Condition, ...] = ()

    # The fields of a key.

    def fields(self, ints: Sequence[int], pointers: Sequence[int] = ()) -> KeyFields:
        """The key fields of the regime of a call."""
        given = pointers or (0,) * len(self.tensor_codes)
        return regime.fields_of(self.size_codes, ints, self.tensor_codes, given, self._formulas)

    def unpack(self, key: int) -> KeyFields:
        """The fields of a key that the dispatcher of this kernel has made."""
        return regime.unpack(key, regime.count(self.size_codes, self.tensor_codes, self._formulas))

    def is_sub_bucket(self, fields: KeyFields) -> bool:
        """Whether these are the fields of sub-buckets of a subdivided regime."""
        codes = [code for code in self.size_codes if code != regime.IGNORE]
        return any(code == regime.BUCKET and regime.is_sub_bucket(f) for code, f in zip(codes, fields, strict=False))

    def is_exact_size(self, fields: KeyFields) -> bool:
        """Whether these are the fields of exact sizes, which have an entry of their own."""
        return regime.has_exact_size(fields, self.size_codes)

    def sub_bucket(self, fields: KeyFields, sizes: Mapping[str, int]) -> KeyFields:
        """The fields of the sub-buckets of these sizes, in the regime `fields`."""
        return self._within(fields, sizes, regime.sub_bucket)

    def exact_size(self, fields: KeyFields, sizes: Mapping[str, int]) -> KeyFields:
        """The fields of exactly these sizes, in the regime `fields`, subdivided or not."""
        return self._within(fields, sizes, regime.exact_size)

    def bucket(self, fields: KeyFields) -> KeyFields:
        """The fields of the whole regime that contains these sub-buckets or exact sizes."""
        return regime.buckets_of(fields, self.size_codes)

    def _within(self, fields: KeyFields, sizes: Mapping[str, int], field: Callable[[int], int]) -> KeyFields:
        bucketed = [sizes[name] for name, code in self._sizes if code == regime.BUCKET]
        return regime.within(fields, self.size_codes, bucketed, field)

    # What they stand for.

    @cached_property
    def bucketed(self) -> frozenset[str]:
        """Names of the sizes of which only the bucket matters."""
        return frozenset(name for name, code in self._sizes if code == regime.BUCKET)

    @cached_property
    def exact(self) -> frozenset[str]:
        """Names of the sizes that keys hold exactly."""
        return frozenset(name for name, code in self._sizes if code == regime.EXACT)

    def deciding(self, ints: Sequence[int]) -> tuple[tuple[str, int], ...]:
        """The integers that a choice may depend on, by name."""
        given = zip(self.size_names, ints, self.size_codes, strict=True)
        return tuple((name, size) for name, size, code in given if code in (regime.BUCKET, regime.EXACT))

    def regime(self, fields: KeyFields) -> Regime:
        """The regime, the sub-buckets or the exact sizes that these fields stand for, the same on every machine. Plan files
        name decisions by it."""
        left = iter(fields)
        sizes = [_size_fact(name, code, next(left)) for name, code in self._sizes if code != regime.IGNORE]
        asked = [(name, code) for name, code in self._tensors if code != regime.ANY]
        aligned = _aligned({name: regime.alignment(code, next(left)) for name, code in asked})
        return Regime((*filter(None, sizes), *aligned, *self._holding(tuple(left))))

    def facts_of_call(self, ints: Sequence[int], pointers: Sequence[int] = ()) -> tuple[Fact, ...]:
        """What distinguishes problems of equal sizes: integers above 8 that 16 divides, the alignment of tensors, and the
        conditions that hold."""
        divisible = [Divisible(name) for name in self._divisible(ints)]
        return (*divisible, *_aligned(self._alignments(pointers)), *self._holding(self._values(ints)))

    def facts_for_code(self, ints: Sequence[int], pointers: Sequence[int] = ()) -> Facts:
        """What code for this call's regime may assume."""
        holding = self._holding(self._values(ints))
        powers = self._powers_of_two(holding)
        given = zip(self.size_names, ints, self.size_codes, strict=True)
        exact = tuple((name, size) for name, size, code in given if _has_one_value(code, size) or name in powers)
        known = dict(exact)
        alignments = self._alignments(pointers)
        multiples = [fact for fact in holding if isinstance(fact, Divisible)]
        below_16 = [(fact.name, fact.by) for fact in sorted(multiples, key=str) if fact.by < 16 and fact.name not in known]
        return Facts(
            divisible=frozenset(self._divisible(ints)) - powers,
            aligned=frozenset(name for name, alignment in alignments.items() if alignment >= 16),
            wide=Wide() in holding,
            exact=exact,
            holding=frozenset(fact for fact in multiples if fact.by >= 16),
            powers=(*below_16, *((name, alignment) for name, alignment in alignments.items() if alignment < 16)),
            least=self._least(ints, self.bucketed - known.keys()),
        )

    def corners(self, ints: Sequence[int]) -> list[dict[str, int]]:
        """The sizes at the ends of the regime: every bucketed size at its smallest and at its largest, in all
        combinations (with more than three of them: all smallest, all largest). Other integers stay as they are."""
        values = self._values(ints)
        given = zip(self.size_names, ints, strict=True)
        ends = [self._ends(name, regime.bucket(n), values) if name in self.bucketed else (n,) for name, n in given]
        if sum(len(end) > 1 for end in ends) > 3:
            return [self._by_name([end[0] for end in ends]), self._by_name([end[-1] for end in ends])]
        return [self._by_name(corner) for corner in itertools.product(*ends)]

    def ends(self, fields: KeyFields) -> tuple[dict[str, int], dict[str, int]]:
        """The bucketed sizes of a regime, or of sub-buckets: all at their smallest, and all at their largest."""
        values = fields[len(fields) - len(self.conditions) :]
        given = zip([(name, code) for name, code in self._sizes if code], fields, strict=False)
        bucketed = {name: self._ends(name, field, values) for (name, code), field in given if code == regime.BUCKET}
        return {name: end[0] for name, end in bucketed.items()}, {name: end[-1] for name, end in bucketed.items()}

    def pointers(self, fields: KeyFields) -> tuple[int, ...]:
        """Addresses of tensors that are aligned as these fields say."""
        left = iter(fields[sum(code != regime.IGNORE for code in self.size_codes) :])
        return tuple(0 if code == regime.ANY else regime.alignment(code, next(left)) % 64 for code in self.tensor_codes)

    # Parts of these.

    @property
    def _sizes(self) -> list[tuple[str, int]]:
        return list(zip(self.size_names, self.size_codes, strict=True))

    @property
    def _tensors(self) -> list[tuple[str, int]]:
        return list(zip(self.tensor_names, self.tensor_codes, strict=False))

    @cached_property
    def _formulas(self) -> tuple[Formula, ...]:
        return tuple(condition.formula for condition in self.conditions)

    def _by_name(self, ints: Sequence[int]) -> dict[str, int]:
        return dict(zip(self.size_names, ints, strict=True))

    def _alignments(self, pointers: Sequence[int]) -> dict[str, int]:
        """The power of two that is known to divide the address of each tensor's data for which it matters."""
        given = zip(self._tensors, pointers or (0,) * len(self.tensor_codes), strict=False)
        asked = [(name, code, pointer) for (name, code), pointer in given if code != regime.ANY]
        known = {name: regime.alignment(code, regime.tensor_field(code, pointer)) for name, code, pointer in asked}
        return {name: alignment for name, alignment in known.items() if alignment > 1}

    def _divisible(self, ints: Sequence[int]) -> list[str]:
        """Names of the integers that 16 divides all over the regime, those with one value there left out."""
        given = zip(self.size_names, ints, self.size_codes, strict=True)
        return [
            name
            for name, size, code in given
            if size % 16 == 0 and (code == regime.DIVISIBLE or (code == regime.BUCKET and size > regime.EXACT_UP_TO))
        ]

    def _values(self, ints: Sequence[int]) -> list[int]:
        return [evaluate(formula, ints) for formula in self._formulas]

    def _holding(self, values: Sequence[int]) -> list[Fact]:
        """What holds where the conditions have these values."""
        facts = (condition.fact(value) for condition, value in zip(self.conditions, values, strict=True))
        return [fact for fact in facts if fact is not None]

    def _powers_of_two(self, holding: Sequence[Fact]) -> frozenset[str]:
        """Names of the bucketed sizes that are known to be powers of two; each is the only one in its regime."""
        return self.bucketed & {fact.name for fact in holding if isinstance(fact, PowerOfTwo)}

    def _ends(self, name: str, field: int, values: Sequence[int]) -> tuple[int, ...]:
        """Smallest and largest value of the bucketed size `name` that has this field where the conditions have these values."""
        divisors = [
            (condition.formula, value)
            for condition, value in zip(self.conditions, values, strict=True)
            if condition.asked == PowerBelow16(name)
        ]

        def alike(size: int) -> bool:
            return all(evaluate(formula, [size] * len(self.size_names)) == value for formula, value in divisors)

        ends = regime.ends(field, alike)
        return ends[-1:] if name in self._powers_of_two(self._holding(values)) else ends

    def _least(self, ints: Sequence[int], free: frozenset[str]) -> tuple[tuple[str, int], ...]:
        """The smallest values in the regime of those `free` sizes that are lengths of rows, which are asked whether they are
        powers of two."""
        asked = {condition.asked for condition in self.conditions}
        rows = [(name, n) for name, n in zip(self.size_names, ints, strict=True) if name in free and PowerOfTwo(name) in asked]
        return tuple((name, regime.bounds(regime.bucket(size))[0]) for name, size in rows)


def _size_fact(name: str, code: int, field: int) -> Fact | None:
    """The meaning of an integer's key field."""
    if code == regime.DIVISIBLE:
        return Divisible(name) if field else None
    if code == regime.EXACT:
        return Size(name, field)
    low, high = regime.bounds(field)
    if field <= regime.EXACT_UP_TO or regime.is_exact_size(field):
        return Size(name, low)
    return MultiplesBetween(name, low, high) if regime.divisible(field) else Between(name, low, high)


def _has_one_value(code: int, size: int) -> bool:
    """Whether the key of a call with this size has the size itself."""
    return code == regime.EXACT or (code == regime.BUCKET and size <= regime.EXACT_UP_TO)


def _aligned(alignments: Mapping[str, int]) -> list[Fact]:
    return [Aligned(name, alignment) for name, alignment in alignments.items() if alignment > 1]
