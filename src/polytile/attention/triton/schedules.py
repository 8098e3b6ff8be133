"""Generates whole Triton kernels for attention: the launches of a config under the facts of a regime."""

from __future__ import annotations

from collections.abc import Callable

from polytile.attention.problem import AttentionProblem
from polytile.attention.triton.backward import backward
from polytile.attention.triton.flash import flash
from polytile.attention.triton.specialised import specialised
from polytile.attention.triton.specialised_backward import specialised_backward
from polytile.attention.triton.split import split
from polytile.codegen.triton.kernel import TritonKernel
from polytile.matmul.triton.unit import Chip
from polytile.problem import Config
from polytile.schedule.facts import Facts

SCHEDULES: dict[str, Callable[[AttentionProblem, Config, Facts, Chip], TritonKernel]] = {
    "flash": flash, "specialised": specialised, "split": split, "backward": backward,
    "backward specialised": specialised_backward,
}  # fmt: skip


def generate(problem: AttentionProblem, config: Config, facts: Facts, chip: Chip) -> TritonKernel:
    """The launches of `problem` under `config`, correct wherever `facts` hold.

    Raises
    ------
    LoweringError
        If the facts lack the number or size of heads, or an operation or dtype has no Triton form.
    """
    return SCHEDULES[str(config["variant"])](problem, config, facts, chip)
