"""Parts of a C++ text that texts have in common: each is compiled once, as an object that the rest of every text is linked with.

    marked(name, text)    a part, to stand in a text
    parts(text)           the parts of a text

A part needs nothing of the text around it, and the rest reaches it by names that the rest declares itself. So a text is also one
translation unit: compiled whole, it is the same kernel, and its digest identifies the parts too.
"""

from __future__ import annotations

import re
from typing import NamedTuple

APART = "POLYTILE_PARTS_APART"
"""The macro that leaves the parts of a text out, because they are linked to it."""

_MARKED = re.compile(rf"#ifndef {APART}  // (?P<name>\w+)\n(?P<text>.*?)#endif  // (?P=name)\n", re.DOTALL)


class Part(NamedTuple):
    name: str
    text: str


def marked(name: str, text: str) -> str:
    """`text`, whole lines, as a part called `name`, an identifier: the name is for people."""
    return f"#ifndef {APART}  // {name}\n{text}#endif  // {name}\n"


def parts(text: str) -> list[Part]:
    """The marked parts of a source that are compiled once for all kernels."""
    return [Part(match["name"], match["text"]) for match in _MARKED.finditer(text)]
