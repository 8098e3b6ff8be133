"""Names of compiled functions, as profilers show them: the kernel's name and the candidate's, such as
`polytile_amax_exp_sum_div_3f2a1b4c_persistent_x_1_warps_4`.

Generators call every function ENTRY. It is renamed where a text is compiled, so names are not part of what identifies a kernel:
equal kernels of different operators have equal texts and share measurements.
"""

from __future__ import annotations

import re

ENTRY = "polytile_kernel"
"""The name of the function in a generated text, and of its alias in a shared object."""

PREFIX = "polytile_"
"""What the names of generated functions begin with, and of no other kernel on a GPU (scripts/sanitize.py)."""

MOST_LETTERS = 120


def symbol_of(kernel: str, candidate: str = "", launch: int | None = None) -> str:
    """An identifier that tells a kernel's candidates apart; `launch` numbers the launches of a candidate that has several."""
    words = re.sub(r"\W+", "_", f"{PREFIX}{kernel} {candidate}".strip(), flags=re.ASCII)[:MOST_LETTERS]
    return words if launch is None else f"{words}_launch{launch}"


def renamed(source: str, symbol: str) -> str:
    """A GPU kernel's text with its function called `symbol`."""
    return re.sub(rf"\b{ENTRY}\b", symbol, source)


def renamed_with_alias(source: str, symbol: str) -> str:
    """A C++ kernel's text with its function called `symbol`. ENTRY becomes an alias of it, by which all kernels are loaded: equal
    texts share one object, which bears the name of the first kernel that was compiled."""
    alias = f'extern "C" long {ENTRY}(void* const*, const long*, long) __attribute__((alias("{symbol}")));\n'
    return renamed(source, symbol) + alias
