"""The three questions that every schedule answers, on a CPU (cpu/schedule.py) and on a GPU (gpu/schedule.py).

    hold      where a share of a row is between two passes over it
    share     who shares a row
    combine   how what the shares come to becomes the row's result

A "program" is a block of threads of a GPU, or a thread of a CPU.
"""

from __future__ import annotations

import enum


class Answer(enum.Enum):
    """An answer to one of the questions. It hashes as the object that it is: predictions ask for schedules by the thousand."""

    __hash__ = object.__hash__


class Hold(Answer):
    """Where a program has its share of a row between passes: in registers, read once, or in memory, read for each pass. On a
    CPU: in memory, with what is costly to compute again in the cache."""

    REGISTERS = "registers"
    MEMORY = "memory"
    CACHE = "cache"


class Share(Answer):
    """Who shares a row (or a column): one program has all of it, the programs of a cluster, which run at the same time and may
    wait for each other, or any programs of the grid, which may not."""

    PROGRAM = "program"
    CLUSTER = "cluster"
    GRID = "grid"


class Combine(Answer):
    """How the shares of a row become one result: there is no row; in the program; by an exchange in the cluster; by the program
    that arrives last; by a launch of its own (the finalise launch)."""

    NOTHING = "nothing"
    PROGRAM = "program"
    CLUSTER = "cluster"
    LAST_PROGRAM = "last program"
    LAUNCH = "launch"
