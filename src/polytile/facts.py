"""Facts about a call beyond the numbers themselves: typed values that know their text.

Such facts distinguish regimes, problems, plans, and the code generated for regimes. The store, plan files and messages contain
them as text. FORM is that text, and `read` reads it back by the same FORM: nothing else formats or parses it.

    Size, Between, MultiplesBetween   M=7   N=363..512   N=363..512%16   the sizes of a regime
    Divisible, PowerOfTwo             K%16   N=2^k                       more about an integer argument
    Aligned, Strided                  x@64   x strided                   a tensor's data
    Wide                              wide                               some position needs 64 bits
    Layout                            k                                  any other text, such as an operand's order of strides
    Threads, OptionValue              threads=3   option level=2         what a kernel runs under
"""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar


@dataclass(frozen=True)
class Fact:
    """One fact. FORM is its text, with the names of its fields in braces."""

    FORM: ClassVar[str]

    def __str__(self) -> str:
        return self.FORM.format(**vars(self))

    def admits(self, sizes: Mapping[str, int]) -> bool:
        """Whether the fact may hold at these sizes, by name. What the sizes do not tell may hold."""
        return True


@dataclass(frozen=True)
class Size(Fact):
    """An integer argument with one value all over the regime."""

    FORM = "{name}={value}"
    name: str
    value: int

    def admits(self, sizes: Mapping[str, int]) -> bool:
        return sizes.get(self.name) == self.value


@dataclass(frozen=True)
class Between(Fact):
    """A size from `low` to `high` that 16 does not divide."""

    FORM = "{name}={low}..{high}"
    name: str
    low: int
    high: int

    def admits(self, sizes: Mapping[str, int]) -> bool:
        size = sizes.get(self.name)
        return size is not None and self.low <= size <= self.high and size % 16 != 0


@dataclass(frozen=True)
class MultiplesBetween(Fact):
    """A size from `low` to `high` that `by` divides."""

    FORM = "{name}={low}..{high}%{by}"
    name: str
    low: int
    high: int
    by: int = 16

    def admits(self, sizes: Mapping[str, int]) -> bool:
        size = sizes.get(self.name)
        return size is not None and self.low <= size <= self.high and size % self.by == 0


@dataclass(frozen=True)
class Divisible(Fact):
    """`by` divides the integer argument."""

    FORM = "{name}%{by}"
    name: str
    by: int = 16

    def admits(self, sizes: Mapping[str, int]) -> bool:
        return sizes.get(self.name, 0) % self.by == 0


@dataclass(frozen=True)
class PowerOfTwo(Fact):
    """The size is a power of two. It is the last size of its half octave (runtime/regime.py), so it is its regime's only one."""

    FORM = "{name}=2^k"
    name: str

    def admits(self, sizes: Mapping[str, int]) -> bool:
        size = sizes.get(self.name, 1)
        return size > 0 and size & (size - 1) == 0


@dataclass(frozen=True)
class Aligned(Fact):
    """The tensor's data starts at a multiple of `bytes` bytes."""

    FORM = "{name}@{bytes}"
    name: str
    bytes: int


@dataclass(frozen=True)
class Strided(Fact):
    """The tensor is not contiguous."""

    FORM = "{name} strided"
    name: str


@dataclass(frozen=True)
class Wide(Fact):
    """Some position in a tensor or in the grid needs 64 bits (schedule/facts.py)."""

    FORM = "wide"


@dataclass(frozen=True)
class Layout(Fact):
    """A property of arguments that a family names by its own word."""

    FORM = "{text}"
    text: str


@dataclass(frozen=True)
class Threads(Fact):
    """The number of processor threads that a kernel may use."""

    FORM = "threads={count}"
    count: int


@dataclass(frozen=True)
class OptionValue(Fact):
    """A registered option that is not at its default; `value` is its repr."""

    FORM = "option {name}={value}"
    name: str
    value: str


@dataclass(frozen=True)
class Regime:
    """A class of sizes that share a decision, as the facts that hold for all of its calls: "M=7 N=363..512%16 x@64"."""

    facts: tuple[Fact, ...] = ()

    def __str__(self) -> str:
        return " ".join(map(str, self.facts))

    def admits(self, sizes: Mapping[str, int]) -> bool:
        """Whether a call at these sizes may be in the regime."""
        return all(fact.admits(sizes) for fact in self.facts)

    @property
    def has_ranges(self) -> bool:
        """Whether some size has more than one value in the regime."""
        return any(isinstance(fact, Between | MultiplesBetween) for fact in self.facts)


Kinds = tuple[type[Fact], ...]

OF_REGIMES: Kinds = (MultiplesBetween, Between, PowerOfTwo, Size, Divisible, Aligned, Wide)
OF_PROBLEMS: Kinds = (Divisible, PowerOfTwo, Aligned, Strided, Wide, Threads, Layout)
OF_PLANS: Kinds = (Threads, OptionValue)
"""The kinds of facts in a regime, among a problem's layouts, and among the conditions of a plan, in the order in which they are
tried on a text."""

@functools.lru_cache(maxsize=4096)
def read(text: str, kinds: Kinds) -> Fact:
    """The fact, of one of these kinds, that is written as `text`. Raises ValueError where there is none."""
    for kind in kinds:
        match = _pattern(kind).fullmatch(text)
        fact = kind(**_values(kind, match)) if match else None
        if fact is not None and str(fact) == text:  # "K%016" is no text of ours
            return fact
    raise ValueError(f"{text!r} is no fact of a kind that is known here: {', '.join(kind.__name__ for kind in kinds)}")


def read_all(texts: Iterable[str], kinds: Kinds) -> tuple[Fact, ...]:
    """The facts written as `texts`. Raises ValueError as `read` does."""
    return tuple(read(text, kinds) for text in texts)


def read_regime(text: str) -> Regime:
    """The regime written as `text`. Raises ValueError where a word of it is no fact of a regime."""
    return Regime(read_all(text.split(), OF_REGIMES))


def texts(facts: Iterable[Fact]) -> tuple[str, ...]:
    """The facts as text, for the store and plan files."""
    return tuple(map(str, facts))


def _pattern(kind: type[Fact]) -> re.Pattern[str]:
    """What the texts of this kind look like, by its FORM."""
    fields = {field.name: _of_field(field) for field in dataclasses.fields(kind)}
    form = re.escape(kind.FORM).replace(r"\{", "{").replace(r"\}", "}")
    return re.compile(form.format(**fields), re.DOTALL)


def _of_field(field: dataclasses.Field[Any]) -> str:
    """What the text of one field looks like: a number, a name, or anything."""
    text = r"-?\d+" if field.type == "int" else r"\w+" if field.name == "name" else ".*"
    return f"(?P<{field.name}>{text})"


def _values(kind: type[Fact], match: re.Match[str]) -> dict[str, Any]:
    numbers = {field.name for field in dataclasses.fields(kind) if field.type == "int"}
    return {name: int(text) if name in numbers else text for name, text in match.groupdict().items()}
