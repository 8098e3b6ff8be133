"""The configs to try for an attention on a CPU, and their names.

    flash      tiles of `rows` by `keys`, in register tiles of `mr` rows by `nv` vectors
    split      blocks of `keys`, dot products of `mr` rows with `columns` keys, register tiles of `mr` rows by `nv` vectors
    backward   like flash

With `pairs`, bfloat16 operands stay bfloat16, two per lane, and so do the weights of `flash` and `backward`, and the gradients of
the scores; otherwise operands are widened to float32.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from polytile.attention.problem import AttentionProblem
from polytile.attention.schedule import schedule_of
from polytile.problem import Config
from polytile.runtime import cpu

FEW_ROWS = 32
"""Keys are read in place up to this many rows per key head, over all its query heads."""

LONG = 16
"""Floats of a vector of 64 bytes, of which a CPU has 32 registers; of shorter vectors it has 16."""
NUMBERS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "flash": ({"rows": 48, "keys": 256, "mr": 6, "nv": 4}, {"rows": 48, "keys": 256, "mr": 6, "nv": 2}),
    "split": ({"keys": 128, "mr": 6, "nv": 4, "columns": 4}, {"keys": 128, "mr": 2, "nv": 4, "columns": 4}),
    "backward": ({"rows": 48, "keys": 256, "mr": 6, "nv": 4}, {"rows": 48, "keys": 128, "mr": 6, "nv": 2}),
}
"""The numbers of each variant for long vectors, with 24 vectors of sums, and for shorter ones, with 12 or fewer."""


def space(problem: AttentionProblem, lanes: int) -> tuple[Config, ...]:
    """Every config for vectors of `lanes` floats, in canonical order, without a number of threads."""
    more: dict[str, Any] = {"pairs": 1} if problem.dtype == torch.bfloat16 and multiplies_pairs() else {}
    forward = ("flash", "split") if problem.dense[1:] == (True, True) else ("flash",)
    variants = ("backward",) if problem.backward else forward
    return tuple(Config.of(variant=variant, **NUMBERS[variant][lanes < LONG], **more) for variant in variants)


def multiplies_pairs() -> bool:
    """Whether this CPU has instructions that multiply pairs of bfloat16."""
    return "avx512_bf16" in cpu.cpu().flags


def valid(config: Config, size: Mapping[str, int]) -> bool:
    """Whether `config` is worth trying at these sizes. It is correct at all of them."""
    return not schedule_of(config).shares_keys or size["Mq"] * (size["Hq"] // max(1, size["Hkv"])) <= FEW_ROWS


def label(config: Config) -> str:
    """A config as a candidate's name: "flash 48x256 bf16 t2", "split 128 t1"."""
    blocks = str(config["keys"]) if schedule_of(config).shares_keys else f"{config['rows']}x{config['keys']}"
    return f"{config['variant']} {blocks}{' bf16' if config.get('pairs') else ''} t{config['threads']}"
