"""Register tiles as a part of a kernel's text (runtime/parts.py), which kernels of all epilogues share.

The tiles of a config, one for each number of rows in two widths, take two thirds of a kernel's compile time. They depend on the
types of the operands, not on what becomes of finished sums. A kernel calls them through a table, once for all of K.
"""

from __future__ import annotations

from collections.abc import Sequence

from polytile.runtime import parts

SYMBOL = "polytile_tiles"
HIDDEN = f'extern "C" __attribute__((visibility("hidden"))) void (*const {SYMBOL}[])()'


def part(name: str, text: str, tables: Sequence[Sequence[str]]) -> str:
    """The functions in `text`, and what they need, with the one table of all tables' functions, each table's from one row on. To
    stand before a kernel's own namespaces, in which `tables_of` says where the tables are."""
    listed = ",\n  ".join(", ".join(["nullptr", *(f"(void (*)())tiles::{each}" for each in table)]) for table in tables)
    held = f"namespace {{\nnamespace tiles {{\n{text}}}  // namespace tiles\n}}  // namespace\n"
    return parts.marked(name, f"{held}{HIDDEN} = {{\n  {listed}}};\n") + f"{HIDDEN};\n"


def tables_of(kind: str, names: Sequence[str]) -> str:
    """The tables by name, of functions of the type `kind`. Each begins with a place for no rows, and has MR more."""
    line = f"static const {kind}* const {{}} = (const {kind}*){SYMBOL} + {{}} * (MR + 1);\n"
    return "".join(line.format(name, place) for place, name in enumerate(names))
