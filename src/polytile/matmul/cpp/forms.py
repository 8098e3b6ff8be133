"""The forms of a product on a CPU: which layouts and types each takes, and at which sizes it can run."""

from __future__ import annotations

from collections.abc import Mapping

from polytile.ir.names import IS_PACKED
from polytile.matmul.cpp.common import ACCUMULATOR_BYTES
from polytile.matmul.cpp.spec import GemmConfig, GemmSpec, widens

SPLITK_PARTIAL_BYTES, SMALLEST_SPLIT_K = 8 << 20, 512
"""Bytes of the sums of `splitk` at most, and elements along k at least."""
SMALL_PANEL_BYTES = 512 << 10
"""Bytes of the panel of B that `small` copies, at most: a second-level cache holds it."""
STREAM_ROWS = 64
"""Rows that `stream` takes at most."""

FORM_LAYOUTS: dict[str, tuple[str, ...]] = {
    "tile_packed": ("n", "k", "any"),
    "tile_direct": ("n",),
    "tile_prepacked": ("n", "k", "any"),
    "splitk": ("n", "k", "any"),
    "stream": ("n",),
    "dot": ("k",),
    "small": ("n", "k", "any"),
}
SEVERAL_K = ("tile_packed", "tile_direct", "tile_prepacked", "splitk", "dot")
"""Forms that can bring several k together in one lane: four bytes of int8, two bfloat16."""
GROUPED_FORMS = ("tile_packed", "tile_direct", "tile_prepacked", "small")
"""Forms whose tiles scale the sums of each group along k."""
UNGROUPED_FORMS = ("splitk",)
"""Forms without a grouped product."""


def can_pair(spec: GemmSpec, config: GemmConfig) -> bool:
    """Whether operands are bfloat16 in pairs of k, or become such: both k of a pair are in one group."""
    stored = spec.stored_b == "bfloat16" or (widens(spec, config) and spec.group % 2 == 0)
    return spec.dtype == "bfloat16" and stored and config.form in SEVERAL_K


def refusal(spec: GemmSpec, config: GemmConfig) -> str:
    """Why the form of `config` has no kernel of such a product, whatever its sizes are; "" where it has one."""
    form, layouts = config.form, FORM_LAYOUTS[config.form]
    if spec.b_layout not in layouts:
        return f"form {form!r} needs a B of layout {' or '.join(map(repr, layouts))}; this one is {spec.b_layout!r}."
    if spec.dtype == "int8" and form not in SEVERAL_K:
        return f"products of int8 take the forms {', '.join(SEVERAL_K)}; this is {form!r}."
    if spec.group and form not in GROUPED_FORMS:
        return f"scales of groups take the forms {', '.join(GROUPED_FORMS)}; this is {form!r}."
    if spec.grouped and form in UNGROUPED_FORMS:
        return f"grouped products take all forms but {', '.join(UNGROUPED_FORMS)}; this is {form!r}."
    if config.pairs and not can_pair(spec, config):
        return f"pairs of k are for bfloat16 in the forms {', '.join(SEVERAL_K)}; this is {spec.dtype} in form {form!r}."
    return ""


def valid(spec: GemmSpec, config: GemmConfig, sizes: Mapping[str, int]) -> bool:
    """Whether the kernel can run, and is not absurd, at these sizes ("batch", "M", "N", "K").

    tile_prepacked needs a packed B (IS_PACKED is not 0), splitk a long K and few sums, stream few rows, small a panel that fits
    L2.
    """
    if refusal(spec, config):
        return False
    if config.form == "tile_prepacked":
        return bool(sizes.get(IS_PACKED))
    if config.form == "splitk":
        sums = sizes["M"] * sizes["N"] * ACCUMULATOR_BYTES[spec.accumulator]
        return sizes["K"] >= SMALLEST_SPLIT_K and sums <= SPLITK_PARTIAL_BYTES
    if config.form == "stream":
        return sizes["M"] <= STREAM_ROWS
    if config.form == "small":
        return spec.b_layout == "n" or sizes["K"] * config.nv * 64 <= SMALL_PANEL_BYTES
    return True


def stream_depth(rows: int, unroll: int) -> int:
    """How many k the stream form takes at once for `rows` rows: `unroll`, halved until the broadcasts fit registers."""
    while unroll > 1 and rows * unroll > 2 * max(unroll, 8):
        unroll //= 2
    return unroll
