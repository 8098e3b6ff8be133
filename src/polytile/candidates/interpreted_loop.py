"""The reference interpreter as a candidate."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property

import torch

from polytile.candidates.candidate import Candidate
from polytile.candidates.entries import PythonEntry
from polytile.problem import Config, digest
from polytile.schedule.canonical import LoopKernel


class InterpretedLoop(Candidate):
    """The reference interpreter as the candidate of last resort: torch operators on index grids, right and slow. It runs only
    where every generated kernel failed, or while they compile and nobody may wait; `explain()` and the log then say so.
    `reason` says why there are no others, if so."""

    name = "interpreted"
    origin = "reference"
    config = Config()
    reason = ""

    def __init__(self, kernel: LoopKernel) -> None:
        self.kernel = kernel

    @cached_property
    def source_hash(self) -> str:
        return digest(f"interpreted {torch.__version__} {self.kernel.text}")

    def cost(self, sizes: Mapping[str, int]) -> float:
        return 1.0

    def entry(self) -> PythonEntry:
        return PythonEntry(self.kernel.interpret)
