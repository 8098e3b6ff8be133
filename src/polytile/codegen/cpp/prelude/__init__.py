"""The C++ that generated kernels start with, text without any #include: vectors, conversions, memory, maths, threads.

Enters: the names of parts, or a kernel's source to find them in. Leaves: the text to put before the kernel, the needed
parts alone in their canonical order. Each part is one header beside this file; its first lines name the parts it needs
and the names it gives. Called by the C++ generators alone.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ALWAYS = ("base", "convert")
ORDER = (
    *ALWAYS, "memory", "arith", "reduce", "exp", "log", "trig", "arc", "hyperbolic", "erf", "pow", "division",
    "special", "random", "barrier", "parallel", "atomic",
)  # fmt: skip
_HEADER = re.compile(r"// (?P<name>\w+): .*\n// needs:(?P<needs>.*)\n// gives:(?P<gives>.*(?:\n//  .*)*)\n")
_WORD = re.compile(r"[A-Za-z_]\w*")
_COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)


@dataclass(frozen=True)
class PreludePart:
    """One header: the parts it needs, the names of namespace `pt` that a kernel uses it for, its text."""

    name: str
    needs: tuple[str, ...]
    gives: frozenset[str]
    text: str


@cache
def part(name: str) -> PreludePart:
    """The part called `name`. Raises ValueError for an unknown name and for a header that does not begin as it must."""
    if name not in ORDER:
        raise ValueError(f"the C++ prelude has no part {name!r}; it has {', '.join(ORDER)}.")
    text = (Path(__file__).parent / f"{name}.h").read_text(encoding="utf-8")
    head = _HEADER.match(text)
    if head is None or head["name"] != name:
        raise ValueError(f"{name}.h must begin with the lines '// {name}: ...', '// needs: ...' and '// gives: ...'.")
    return PreludePart(name, tuple(head["needs"].split()), frozenset(head["gives"].replace("//", "").split()), text)


def closure(parts: Iterable[str]) -> tuple[str, ...]:
    """The names `parts`, all they need, and what is always there, in canonical order."""
    needed: set[str] = set()
    waiting = [*ALWAYS, *parts]
    while waiting:
        name = waiting.pop()
        if name not in needed:
            needed.add(name)
            waiting.extend(part(name).needs)
    return tuple(name for name in ORDER if name in needed)


def prelude(parts: Iterable[str] = ()) -> str:
    """The text to put before a kernel that uses `parts`. What follows it counts its lines anew, as file "kernel"."""
    return _text(closure(parts))


@cache
def _text(names: tuple[str, ...]) -> str:
    texts = [f'#line 1 "prelude/{name}.h"\n{part(name).text}' for name in names]
    return "".join(texts) + '#line 1 "kernel"\n'


def parts_of(source: str) -> frozenset[str]:
    """The parts that a kernel's text uses: those that give one of the names in it, comments aside.

    A name counts wherever it stands, so a variable called `log` brings in the logarithms, at the price of a few
    milliseconds of compile time; no use is missed.
    """
    owners = _owners()
    return frozenset(owners[word] for word in _WORD.findall(_COMMENT.sub(" ", source)) if word in owners)


@cache
def _owners() -> dict[str, str]:
    return {given: name for name in ORDER for given in part(name).gives}
