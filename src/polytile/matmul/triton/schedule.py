"""GPU schedules of products as data: the questions that every schedule answers (schedule/answers.py), and some about
multiprocessors.

    share      who shares a tile of the result: one program computes it, or programs of the grid each have a part of K
    combine    how partial sums become the tile's: in the program, or by a second launch
    resident   one persistent program per multiprocessor, which loops over tiles
    described  operands are loaded through tensor descriptors (TMA)
    tensor     uses tensor cores
    grouped    tiles belong to groups whose sizes are known only on the device

| share   | combine | resident | described | tensor | grouped | name        | shown in     |
| ------- | ------- | -------- | --------- | ------ | ------- | ----------- | ------------ |
| program | program |          |           | yes    |         | tile        | schedules.py |
| grid    | launch  |          |           | yes    |         | split       | split_k.py   |
| grid    | launch  | yes      |           | yes    |         | stream      | stream.py    |
| program | program | yes      | yes       | yes    |         | persistent  | schedules.py |
| program | program |          |           |        |         | rows        | schedules.py |
| program | program |          |           | yes    | yes     | grouped     | grouped.py   |
| program | program |          | yes       | yes    | yes     | grouped_tma | grouped.py   |

The name appears in candidates' names and in stored configs (`variant`); tables map it to code and to a cost model.
"""

from __future__ import annotations

from dataclasses import dataclass

from polytile.problem import Config
from polytile.schedule.answers import Combine, Share


@dataclass(frozen=True)
class ProductSchedule:
    """One row of the table above."""

    share: Share = Share.PROGRAM
    combine: Combine = Combine.PROGRAM
    resident: bool = False
    described: bool = False
    tensor: bool = True
    grouped: bool = False

    @property
    def finish_blocks(self) -> bool:
        """Whether the second launch has tiles of its own. That of resident programs processes strips of their tiles."""
        return self.combine is Combine.LAUNCH and not self.resident


TILE = ProductSchedule()
BY_NAME: dict[str, ProductSchedule] = {
    "tile": TILE,
    "split": ProductSchedule(Share.GRID, Combine.LAUNCH),
    "stream": ProductSchedule(Share.GRID, Combine.LAUNCH, resident=True),
    "persistent": ProductSchedule(resident=True, described=True),
    "rows": ProductSchedule(tensor=False),
    "grouped": ProductSchedule(grouped=True),
    "grouped_tma": ProductSchedule(described=True, grouped=True),
}


def schedule_of(config: Config) -> ProductSchedule:
    """The schedule that a config names. Raises KeyError for an unknown name."""
    return BY_NAME[str(config["variant"])]
