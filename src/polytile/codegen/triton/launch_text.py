"""The text of a launch around its lines: imports, helpers, a comment, and the signature, whose parameters are what the
lines use."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import sympy
import torch

from polytile.codegen.function_names import ENTRY
from polytile.codegen.triton import text
from polytile.codegen.triton.helpers import needed
from polytile.codegen.triton.kernel import Argument, Kind, Launch
from polytile.codegen.triton.tile import quotient
from polytile.schedule.canonical import TensorArg
from polytile.schedule.facts import Facts

HEADER = "import triton\nimport triton.language as tl\nfrom triton.language.extra import libdevice\n"
ORDER = "from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait\n"
WAIT = ("gdc_wait()", "gdc_launch_dependents()")
"""Lines that wait for the preceding kernel, and that allow the next one's programs to be scheduled."""


def arguments(
    tensors: Iterable[TensorArg], integers: Iterable[str], scratch: Mapping[int, torch.dtype], facts: Facts, error: bool
) -> list[Argument]:
    """The possible arguments of a launch: tensors, integers whose value the facts do not determine, scratch memory by
    number and, with run-time checks (`error`), their word."""
    integer = "i64" if facts.wide else "i32"
    given = [Argument(Kind.TENSOR, tensor.name, text.pointer_type(tensor.dtype)) for tensor in tensors]
    given += [Argument(Kind.SYMBOL, name, integer) for name in integers if name not in facts.values]
    given += [Argument(Kind.SCRATCH, f"scratch{k}", text.pointer_type(dtype), k) for k, dtype in sorted(scratch.items())]
    return [*given, Argument(Kind.ERROR, "error", "*i32")] if error else given


def with_quotients(
    lines: Iterable[str], symbols: Iterable[sympy.Symbol], quotients: Collection[sympy.Symbol], facts: Facts
) -> list[str]:
    """The lines, preceded by definitions of the `quotients` among the launch's integers."""
    return [*(f"{quotient(s, facts)} = {s} // {facts.divisor(s.name)}" for s in symbols if s in quotients), *lines]


def words(lines: Iterable[str]) -> set[str]:
    """All names in a text."""
    return set(re.findall(r"\w+", "\n".join(lines)))


def launch(
    comment: Iterable[str], lines: Sequence[str], given: Iterable[Argument], constants: Mapping[str, int], facts: Facts,
    overlaps: bool, *, header: str = HEADER, jit: str = "triton.jit", functions: Iterable[str] = (), **more: Any,
) -> Launch:  # fmt: skip
    """The launch of a function with these `lines` and the arguments `given`, after the texts `functions`; `more` are further
    fields of Launch."""
    given, body = tuple(given), "\n".join("    " + line for line in lines or ["pass"])
    head = [*[argument.name for argument in given], *[f"{name}: tl.constexpr" for name in constants]]
    function = "\n".join([*comment, f"@{jit}", f"def {ENTRY}({', '.join(head)}):", body])
    header = header + (ORDER if overlaps else "")
    source = "\n\n".join(part for part in (header, *functions, needed(body), function + "\n") if part)
    known = tuple((argument.name, by) for argument in given if (by := _divisor(argument, facts)) > 1)
    return Launch(source, given, tuple(constants.items()), known, overlaps=overlaps, **more)


def _divisor(argument: Argument, facts: Facts) -> int:
    """The power of two up to 16 known to divide an argument: a pointer's address, an integer's value."""
    if argument.kind in (Kind.TENSOR, Kind.SYMBOL):
        return facts.divisor(argument.name)
    return 16 if argument.kind is Kind.SCRATCH else 1
