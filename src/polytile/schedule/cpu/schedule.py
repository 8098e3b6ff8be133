"""A CPU schedule: answers to the questions of every schedule (schedule/answers.py), and to two about vectors.

    hold      where a thread keeps what several passes over a row need; CACHE: expensive values stay in the first-level
    cache
    share     who shares a row: one thread (PROGRAM), or all threads of the call, which may synchronise (CLUSTER)
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

Each call states its number of threads. The name appears in candidates' names and in stored configs (`variant`); no
decision depends on it. catalogue.py documents each schedule, with code before and after.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass

from polytile.problem import Config
from polytile.schedule.answers import Combine, Hold, Share


class Lanes(enum.Enum):
    """Which points are the lanes of a vector: neighbours along the axis with the best memory layout, where accesses
    along another axis go lane by lane (ALONG) or by square tiles transposed in registers (TILED); or points of another
    axis because that one is too short, with the accesses along it transposed (ACROSS)."""

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
    """One schedule of a loop. Raises ValueError for answers that no code is generated for."""

    hold: Hold
    share: Share
    combine: Combine
    lanes: Lanes = Lanes.ALONG
    stores: Stores = Stores.CACHED

    def __post_init__(self) -> None:
        if self._answers not in NAMES:
            raise ValueError(
                f"a CPU's schedule with {', '.join(answer.value for answer in self._answers)} was asked for; no code is "
                f"generated for it: the table in polytile.schedule.cpu.schedule lists the supported ones."
            )

    @property
    def _answers(self) -> Answers:
        return self.hold, self.share, self.combine, self.lanes, self.stores

    @property
    def name(self) -> str:
        """Its name in candidates and measurements, unique among the schedules of points and among those of rows."""
        return NAMES[self._answers]

    def config(self, threads: int) -> Config:
        """Its form in measurements."""
        return Config.of(variant=self.name, threads=threads)

    @property
    def caches(self) -> bool:
        """Whether expensive values of a row are cached for later passes."""
        return self.hold is Hold.CACHE

    @property
    def shared(self) -> bool:
        """Whether all threads share each row."""
        return self.share is Share.CLUSTER

    @property
    def needs_threads(self) -> bool:
        """Whether it is useless with one thread, because its cost only serves to separate threads."""
        return self.shared or self.stores is Stores.ATOMIC


Answers = tuple[Hold, Share, Combine, Lanes, Stores]
ROW, POINT = (Share.PROGRAM, Combine.PROGRAM), (Hold.REGISTERS, Share.PROGRAM, Combine.NOTHING)
"""Answers shared by most schedules of rows, and by all schedules of points."""
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
