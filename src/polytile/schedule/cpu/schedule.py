"""How a CPU goes through a loop: the questions that every schedule answers (schedule/answers.py), and two about its vectors.

    hold      where a thread has what several passes over a row need; CACHE: costly values wait in the first-level cache
    share     who shares a row: one thread (PROGRAM), or all threads of the call, which may wait for each other (CLUSTER)
    combine   how the shares of a row become one result
    lanes     which points are the lanes of a vector
    stores    how results are written

| hold      | share   | combine | lanes  | stores   | name       |
| --------- | ------- | ------- | ------ | -------- | ---------- |
| registers | program | nothing | along  | cached   | plain      |
| registers | program | nothing | tiled  | cached   | tiled      |
| registers | program | nothing | across | cached   | short      |
| registers | program | nothing | along  | streamed | streamed   |
| registers | program | nothing | along  | atomic   | atomic     |
| cache     | program | program | along  | cached   | persistent |
| memory    | program | program | along  | cached   | looped     |
| cache     | program | program | across | cached   | short      |
| cache     | cluster | cluster | along  | cached   | split      |

Each call says how many threads there are. The name stands in candidates' names and in stored configs (`variant`); nothing
decides by it. catalogue.py shows each schedule, with code before and after.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from polytile.problem import Config
from polytile.schedule.answers import Combine, Hold, Share


class Lanes(enum.Enum):
    """Which points are the lanes of a vector: neighbours along the axis that suits memory best, with what lies along another axis
    read lane by lane (ALONG) or transposed by square tiles in registers (TILED); or points of another axis, as that one is too
    short, with what lies along it transposed (ACROSS)."""

    ALONG = "along"
    TILED = "tiled"
    ACROSS = "across"


class Stores(enum.Enum):
    """How results are written: through the caches; past them, by non-temporal stores; by atomic updates."""

    CACHED = "cached"
    STREAMED = "streamed"
    ATOMIC = "atomic"


@dataclass(frozen=True)
class CpuSchedule:
    """One way through a loop. Raises ValueError for answers that no code is generated for."""

    hold: Hold
    share: Share
    combine: Combine
    lanes: Lanes = Lanes.ALONG
    stores: Stores = Stores.CACHED

    def __post_init__(self) -> None:
        if self._answers not in NAMES:
            raise ValueError(
                f"a CPU's schedule with {', '.join(answer.value for answer in self._answers)} was asked for; no code is "
                f"generated for it: the table in polytile.schedule.cpu.schedule has those that there are."
            )

    @property
    def _answers(self) -> Answers:
        return self.hold, self.share, self.combine, self.lanes, self.stores

    @property
    def name(self) -> str:
        """Its name in candidates and measurements: among the schedules of points, or of rows, only one has it."""
        return NAMES[self._answers]

    def config(self, threads: int) -> Config:
        """As measurements have it."""
        return Config.of(variant=self.name, threads=threads)

    @property
    def caches(self) -> bool:
        """Whether costly values of a row wait for later passes."""
        return self.hold is Hold.CACHE

    @property
    def shared(self) -> bool:
        """Whether all threads share each row."""
        return self.share is Share.CLUSTER

    @property
    def needs_threads(self) -> bool:
        """Whether it is of no use to one thread: what it costs keeps threads apart."""
        return self.shared or self.stores is Stores.ATOMIC


Answers = tuple[Hold, Share, Combine, Lanes, Stores]
ROW, POINT = (Share.PROGRAM, Combine.PROGRAM), (Hold.REGISTERS, Share.PROGRAM, Combine.NOTHING)
"""Answers that most schedules of rows, and all of points, have in common."""
NAMES: dict[Answers, str] = {
    (*POINT, Lanes.ALONG, Stores.CACHED): "plain",
    (*POINT, Lanes.TILED, Stores.CACHED): "tiled",
    (*POINT, Lanes.ACROSS, Stores.CACHED): "short",
    (*POINT, Lanes.ALONG, Stores.STREAMED): "streamed",
    (*POINT, Lanes.ALONG, Stores.ATOMIC): "atomic",
    (Hold.CACHE, *ROW, Lanes.ALONG, Stores.CACHED): "persistent",
    (Hold.MEMORY, *ROW, Lanes.ALONG, Stores.CACHED): "looped",
    (Hold.CACHE, *ROW, Lanes.ACROSS, Stores.CACHED): "short",
    (Hold.CACHE, Share.CLUSTER, Combine.CLUSTER, Lanes.ALONG, Stores.CACHED): "split",
}
"""The name of a schedule, by its answers."""
