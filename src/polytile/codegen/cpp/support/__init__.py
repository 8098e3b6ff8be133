"""Helpers of generated loops beyond the prelude: tails, uniform loads and stores, sweeps, scans, scratch memory, teams.

In: a kernel's text. Out: the headers it uses. Each header's first lines name what it gives. Called only by `unit`.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

ORDER = (
    "vectors",
    "every",
    "tile",
    "scatter",
    "sweep",
    "extremes",
    "scan",
    "logaddexp",
    "columns",
    "scratch",
    "team",
    "indices",
    "divisors",
)
_HEADER = re.compile(r"// (\w+): .*\n// gives:(.*)\n")


@cache
def part(name: str) -> tuple[frozenset[str], str]:
    """The names that a header provides, and its text. Raises ValueError for a header that does not begin with its name
    and what it gives."""
    text = (Path(__file__).parent / f"{name}.h").read_text(encoding="utf-8")
    head = _HEADER.match(text)
    if head is None or head[1] != name:
        raise ValueError(f"support/{name}.h must begin with the lines '// {name}: ...' and '// gives: ...'.")
    return frozenset(head[2].split()), text


def text(source: str) -> str:
    """The headers that `source` uses."""
    words = set(re.findall(r"\w+", source))
    used = [name for name in ORDER if name == "vectors" or part(name)[0] & words]
    return "".join(part(name)[1] for name in used)
