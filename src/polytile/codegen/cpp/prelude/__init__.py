"""The C++ prelude of generated kernels, text without any #include: vectors, conversions, memory, maths, threads.

In: the names of parts, or a kernel's source to find them in. Out: the text to put before the kernel, with only the
needed parts, in their canonical order. Each part is a header beside this file. Its first lines name the parts it needs
and the names it gives. Called only by the C++ generators.
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
    """One header: the parts it needs, the names of namespace `pt` that it provides to kernels, and its text."""

    name: str
    needs: tuple[str, ...]
    gives: frozenset[str]
    text: str


@cache
def part(name: str) -> PreludePart:
    """The part called `name`. Raises ValueError for an unknown name, and for a header with malformed first lines."""
    if name not in ORDER:
        raise ValueError(f"the C++ prelude has no part {name!r}; it has {', '.join(ORDER)}.")
    text = (Path(__file__).parent / f"{name}.h").read_text(encoding="utf-8")
    head = _HEADER.match(text)
    if head is None or head["name"] != name:
        raise ValueError(f"{name}.h must begin with the lines '// {name}: ...', '// needs: ...' and '// gives: ...'.")
    return PreludePart(name, tuple(head["needs"].split()), frozenset(head["gives"].replace("//", "").split()), text)


def closure(parts: Iterable[str]) -> tuple[str, ...]:
    """The given parts, everything they need, and the parts in ALWAYS, in canonical order."""
    needed: set[str] = set()
    waiting = [*ALWAYS, *parts]
    while waiting:
        name = waiting.pop()
        if name not in needed:
            needed.add(name)
            waiting.extend(part(name).needs)
    return tuple(name for name in ORDER if name in needed)


def prelude(parts: Iterable[str] = ()) -> str:
    """The text to put before a kernel that uses `parts`. Line numbers restart after it, as file "kernel"."""
    return _text(closure(parts))


@cache
def _text(names: tuple[str, ...]) -> str:
    texts = [f'#line 1 "prelude/{name}.h"\n{part(name).text}' for name in names]
    return "".join(texts) + '#line 1 "kernel"\n'


def parts_of(source: str) -> frozenset[str]:
    """The parts that a kernel's text uses: those that provide one of the names in it, outside comments.

    A name counts wherever it occurs, so a variable called `log` includes the logarithms, at the cost of a few milliseconds of
    compile time. No use is missed.
    """
    owners = _owners()
    return frozenset(owners[word] for word in _WORD.findall(_COMMENT.sub(" ", source)) if word in owners)


@cache
def _owners() -> dict[str, str]:
    return {given: name for name in ORDER for given in part(name).gives}
