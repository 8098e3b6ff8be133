"""Attention as C++ kernels for CPUs: flash (tiles of rows against blocks of keys), split (few rows, whose keys the threads
share), and backward.

Enters: an AttentionProblem, a Config, the lanes of a vector. Leaves: the text of a translation unit. Called by candidates.
"""

from __future__ import annotations

from polytile.attention.cpp.backward import backward
from polytile.attention.cpp.flash import flash
from polytile.attention.cpp.split import split
from polytile.attention.problem import AttentionProblem
from polytile.codegen.cpp.prelude import parts_of, prelude
from polytile.codegen.cpp.unit import preamble
from polytile.problem import Config

_FORMS = {"flash": flash, "split": split, "backward": backward}


def generate(problem: AttentionProblem, config: Config, name: str, lanes: int) -> str:
    """The translation unit that exports the kernel `name` (the native kernel ABI) for the problem's tensors and integers."""
    body = _FORMS[str(config["variant"])](problem, config, name, lanes)
    return (prelude(parts_of(body)) if not problem.computes_scores else preamble(body)) + body
