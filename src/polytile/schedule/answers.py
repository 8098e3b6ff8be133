"""The three questions that every schedule answers, on a CPU (cpu/schedule.py) and on a GPU (gpu/schedule.py).

    hold      where a share of a row is kept between two passes over it
    share     who shares a row
    combine   how the results of the shares become the row's result

A "program" is a thread block on a GPU, or a thread on a CPU.
"""

from __future__ import annotations

import enum


class Answer(enum.Enum):
    """An answer to one of the questions. Hashed by identity, for speed: predictions look up thousands of schedules."""

    __hash__ = object.__hash__


class Hold(Answer):
    """Where a program keeps its share of a row between passes: in registers, read once, or in memory, read in each
    pass. On a CPU: in memory, or in the cache for values that are expensive to recompute."""

    REGISTERS = "registers"
    MEMORY = "memory"
    CACHE = "cache"


class Share(Answer):
    """Who shares a row (or a column): one program has all of it; the programs of a cluster, which run concurrently and
    may synchronise; or any programs of the grid, which may not."""

    PROGRAM = "program"
    CLUSTER = "cluster"
    GRID = "grid"


class Combine(Answer):
    """How the shares of a row become one result: there is no row; within the program; by an exchange in the cluster; by
    the last program to arrive; by a separate launch (the finalise launch)."""

    NOTHING = "nothing"
    PROGRAM = "program"
    CLUSTER = "cluster"
    LAST_PROGRAM = "last program"
    LAUNCH = "launch"
