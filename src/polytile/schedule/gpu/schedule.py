"""A GPU schedule: a point in the space of three questions (schedule/answers.py), and the blocks.

    hold      where a program keeps its share of a row between two passes over it
    share     who shares a row: one program, the programs of a cluster, programs all over the grid
    combine   how the results of the shares become the row's result
    columns   who shares a column, if the loop adds up columns in addition to its rows (stores of mode SEGMENT_SUM)

| hold      | share   | combine      | columns | name             | constructor              |
| --------- | ------- | ------------ | ------- | ---------------- | ------------------------ |
| registers | program | nothing      |         | pointwise        | pointwise                |
| registers | program | program      |         | persistent       | persistent               |
| memory    | program | program      |         | looped           | looped                   |
| memory    | grid    | last program |         | split            | split                    |
| memory    | grid    | launch       |         | split, finalise  | split                    |
| registers | cluster | cluster      |         | cluster          | cluster                  |
| registers | program | program      | any     | column_reduction | column_reduction         |
| memory    | program | program      | any     | ... , parts      | blocked_column_reduction |
| registers | cluster | cluster      | any     | ... , splits     | cluster_column_reduction |
| memory    | grid    | launch       | program | column_parallel  | column_parallel          |

The name appears in candidates' names and in stored configs (`variant`); no decision depends on it.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from functools import cached_property

from polytile.problem import Config
from polytile.schedule.answers import Combine, Hold, Share


@dataclass(frozen=True)
class Blocks:
    """The numbers of a schedule; None where the schedule has no such number. Blocks are powers of two, in points of an axis.

        x, y, z    points of the parallel axes in a block: the vector axis (columns) or rows, then the next axes
        r, r1      points of the innermost reduced axis in a block, and of the next
        warps      warps per block, of 32 threads (64 on AMD devices)
        stages     blocks of a loop whose loads are in flight at once
        splits     programs that share a row
        along      the reduced axis that the splits divide: "r", "r1"; the axes around them are "r2" and so on
        parts      blocks of r that a program iterates over for a row
        programs   maximum number of programs that share all rows of a column reduction
        finalise   columns per program of the finalise launch
        resident   programs that a multiprocessor must hold, which limits the registers of each
    """

    x: int | None = None
    y: int | None = None
    z: int | None = None
    r: int | None = None
    r1: int | None = None
    warps: int | None = None
    stages: int | None = None
    splits: int | None = None
    along: str | None = None
    parts: int | None = None
    programs: int | None = None
    finalise: int | None = None
    resident: int | None = None

    def points(self, name: str) -> int:
        """Points of the block along the axis `name`; 1 if the block does not extend along it."""
        return int(getattr(self, name, None) or 1)


NUMBERS = tuple(field.name for field in fields(Blocks))
NAMES: dict[tuple[Hold, Share, Combine, bool], str] = {
    (Hold.REGISTERS, Share.PROGRAM, Combine.NOTHING, False): "pointwise",
    (Hold.REGISTERS, Share.PROGRAM, Combine.PROGRAM, False): "persistent",
    (Hold.MEMORY, Share.PROGRAM, Combine.PROGRAM, False): "looped",
    (Hold.MEMORY, Share.GRID, Combine.LAST_PROGRAM, False): "split",
    (Hold.MEMORY, Share.GRID, Combine.LAUNCH, False): "split",
    (Hold.REGISTERS, Share.CLUSTER, Combine.CLUSTER, False): "cluster",
    (Hold.REGISTERS, Share.PROGRAM, Combine.PROGRAM, True): "column_reduction",
    (Hold.MEMORY, Share.PROGRAM, Combine.PROGRAM, True): "column_reduction",
    (Hold.REGISTERS, Share.CLUSTER, Combine.CLUSTER, True): "column_reduction",
    (Hold.MEMORY, Share.GRID, Combine.LAUNCH, True): "column_parallel",
}
"""The name of a schedule, by its answers and whether it adds up columns."""


@dataclass(frozen=True)
class GpuSchedule:
    """One schedule of a loop. Raises ValueError for answers that no code is generated for."""

    hold: Hold
    share: Share
    combine: Combine
    blocks: Blocks
    columns: Share | None = None

    def __post_init__(self) -> None:
        if self._answers not in NAMES:
            answers = f"hold={self.hold.value}, share={self.share.value}, combine={self.combine.value}"
            raise ValueError(
                f"a schedule with {answers}, columns={self.columns and self.columns.value} was asked for; no code is generated "
                f"for it: the table in polytile.schedule.gpu.schedule lists the supported ones."
            )

    @property
    def _answers(self) -> tuple[Hold, Share, Combine, bool]:
        return self.hold, self.share, self.combine, self.columns is not None

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def _hash(self) -> int:
        return hash((*self._answers, self.columns, self.blocks))

    @property
    def name(self) -> str:
        """Its name in candidates and measurements. Schedules that differ only in their numbers share it."""
        return NAMES[self._answers]

    @property
    def config(self) -> Config:
        """Its form in measurements."""
        numbers = [(name, value) for name in NUMBERS if (value := getattr(self.blocks, name)) is not None]
        return Config(tuple(sorted([*numbers, ("variant", self.name)])))

    # queries of emitters, configs and predictions
    # ---------------------------------------------------------------------------

    @cached_property
    def resident(self) -> bool:
        """Whether rows are held completely in registers and read once, by one program or by a cluster."""
        return self.hold is Hold.REGISTERS and self.combine is not Combine.NOTHING

    @cached_property
    def bounded(self) -> bool:
        """Whether a row must fit in the blocks: registers hold it, or `parts` blocks cover it."""
        return self.resident or bool(self.blocks.parts)

    @cached_property
    def chunked(self) -> bool:
        """Whether programs all over the grid share a row in chunks."""
        return self.share is Share.GRID and self.columns is None

    @cached_property
    def clustered(self) -> bool:
        """Whether a cluster shares a row, without column sums."""
        return self.share is Share.CLUSTER and self.columns is None

    @cached_property
    def swept(self) -> bool:
        """Whether programs iterate over rows in memory block by block, once per pass."""
        return self.hold is Hold.MEMORY and self.columns is None

    @cached_property
    def one_sweep(self) -> bool:
        """Whether one pass finds both a maximum and the sum of exponentials relative to it. Rows in registers are
        traversed as often as needed; rows in memory, and rows whose programs wait for each other, as seldom as
        possible."""
        return self.swept or self.clustered

    @cached_property
    def threads(self) -> int:
        """Threads of a program on NVIDIA devices."""
        return 32 * self.warps

    @cached_property
    def warps(self) -> int:
        return self.blocks.warps or 1

    @cached_property
    def stages(self) -> int:
        return self.blocks.stages or 1

    @cached_property
    def splits(self) -> int:
        """Number of programs that share a row."""
        return self.blocks.splits or 1

    @cached_property
    def held(self) -> int:
        """Points of the innermost reduced axis that the programs of a row cover together with their blocks."""
        return self.blocks.points("r") * (self.blocks.parts or 1) * self.splits
