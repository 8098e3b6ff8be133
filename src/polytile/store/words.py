"""Translates the old names of candidates, configs and sizes in what an older polytile wrote: stores, JSON lines, plans, models.

Present names are unchanged, so translating twice does no harm.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace

from polytile.problem import Config, Measurement, Problem

VARIANTS = {
    "plain": "pointwise", "sums": "column_reduction", "stripes": "column_parallel", "scatter": "atomic",
    "leaders": "first_occurrence", "seekers": "owner_computes",
}  # fmt: skip
"""Schedules on GPUs. A CPU's `plain` keeps its name."""

NAMES: tuple[tuple[re.Pattern[str], str | Callable[[re.Match[str]], str]], ...] = (
    (re.compile(rf"^({'|'.join(VARIANTS)})(?= \w+=)"), lambda match: VARIANTS[match[1]]),
    (re.compile(r"\bgathers="), "finalise="),
    (re.compile(r"^((?:inline )?)tile_kept\b"), r"\1tile_prepacked"),
    (re.compile(r"^apart$"), "unfused"),
    (re.compile(r"^stored first$"), "materialised operands"),
    (re.compile(r"^aten (\d+) parts$"), r"aten split_k \1"),
)
"""What a candidate's name looks like, or a part of it."""

NUMBERS = {"gathers": "finalise"}
ORIGINS = {"decomposed": "split_k"}
FORMS = {"tile_kept": "tile_prepacked"}
STATE = {"algorithm_told": "algorithm_attributes"}
PRODUCT = {"batch", "M", "N", "K"}
"""Sizes that tell a product, whose integer `kept` is now `packed`, from a kernel of a user's."""


def candidate(name: str) -> str:
    """The present name of a candidate."""
    for pattern, present in NAMES:
        name = pattern.sub(present, name)
    return name


def config(old: Config, named: str) -> Config:
    """The present config of the candidate that was called `named`."""
    if candidate(named) == named:
        return old
    words = {"variant": VARIANTS, "form": FORMS}
    values = ((NUMBERS.get(name, name), words.get(name, {}).get(str(value), value)) for name, value in old.values)
    return Config(tuple(values), old.hint)


def sizes(old: Mapping[str, int]) -> dict[str, int]:
    """The present names of a problem's sizes."""
    is_product = PRODUCT.issubset(old)
    return {"packed" if is_product and name == "kept" else name: size for name, size in old.items()}


def regime(old: str, sizes: Collection[str]) -> str:
    """The present text of a regime of a kernel with these sizes."""
    return re.sub(r"\bkept=", "packed=", old) if PRODUCT.issubset(sizes) else old


def feature(name: str, on_gpu: bool) -> str:
    """The present name of a model's feature."""
    what, _, word = name.partition("=")
    words = {"variant": VARIANTS if on_gpu else {}, "form": FORMS, "origin": ORIGINS}.get(what, {})
    return f"{what}={words[word]}" if word in words else name.replace("config.gathers", "config.finalise")


def measurement(old: Measurement) -> Measurement:
    """The measurement by present names."""
    return replace(
        old,
        problem=problem(old.problem),
        candidate=candidate(old.candidate),
        config=config(old.config, old.candidate),
        origin=ORIGINS.get(old.origin, old.origin),
        state=tuple((STATE.get(name, name), value) for name, value in old.state),
    )


def problem(old: Problem) -> Problem:
    """The problem by present names."""
    return replace(old, sizes=tuple(sizes(old.size).items()))
