"""How a GPU goes through the blocks of a product, as data: the questions that every schedule answers (schedule/answers.py), and
some about multiprocessors.

    share      who shares a block of the result: one program has it, or programs of the grid have a part of K each
    combine    how their sums become the block's: in the program, or by a second launch
    resident   as many programs as multiprocessors, one on each, block after block
    described  operands come through tensor descriptors (TMA)
    tensor     tensor cores multiply
    grouped    blocks are those of groups whose sizes are known on the device only

| share   | combine | resident | described | tensor | grouped | name       | shown in     |
| ------- | ------- | -------- | --------- | ------ | ------- | ---------- | ------------ |
| program | program |          |           | yes    |         | tile       | schedules.py |
| grid    | launch  |          |           | yes    |         | split      | split_k.py   |
| grid    | launch  | yes      |           | yes    |         | stream     | stream.py    |
| program | program | yes      | yes       | yes    |         | persistent | schedules.py |
| program | program |          |           |        |         | rows       | schedules.py |
| program | program |          |           | yes    | yes     | grouped    | grouped.py   |

The name stands in candidates' names and in stored configs (`variant`); tables go from it to code and to a cost.
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
        """Whether the second launch has blocks of its own; that of resident programs has strips of theirs."""
        return self.combine is Combine.LAUNCH and not self.resident


TILE = ProductSchedule()
BY_NAME: dict[str, ProductSchedule] = {
    "tile": TILE,
    "split": ProductSchedule(Share.GRID, Combine.LAUNCH),
    "stream": ProductSchedule(Share.GRID, Combine.LAUNCH, resident=True),
    "persistent": ProductSchedule(resident=True, described=True),
    "rows": ProductSchedule(tensor=False),
    "grouped": ProductSchedule(grouped=True),
}


def schedule_of(config: Config) -> ProductSchedule:
    """The schedule that a config names. Raises KeyError for a name that names none."""
    return BY_NAME[str(config["variant"])]
