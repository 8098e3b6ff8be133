"""Rates of arithmetic and of memory traffic: what a kernel reached at each size, beside the best that was measured on the device.

The work of a problem is what the prediction of a measurement says (candidates' `terms`), not what the hardware counted: a product
of M, N and K takes 2·M·N·K operations and reads its operands once.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from polytile.problem import Measurement
from polytile.store.records import TERM

if TYPE_CHECKING:
    from polytile.report.cells import Cell, Panel


@dataclass(frozen=True)
class Work:
    """What a call computes and moves at least. `operations` are None for kernels whose measurements do not say."""

    operations: float | None
    bytes: float


@dataclass(frozen=True)
class Rate:
    """Work per second: of the candidate that runs at a size."""

    operations: float | None
    bytes: float
    intensity: float | None
    """Operations per byte."""


@dataclass(frozen=True)
class Roof:
    """The highest rates that any candidate reached on a device, of operations with the same types and of bytes. None: unknown."""

    operations: float | None
    bytes: float | None

    def share(self, rate: Rate) -> float | None:
        """A rate over what the roofline allows at its intensity: the lesser of both limits."""
        if self.bytes is None:
            return None
        if rate.operations is None or rate.intensity is None or self.operations is None:
            return rate.bytes / self.bytes
        return rate.operations / min(self.operations, rate.intensity * self.bytes)


def stated_work(measurements: Iterable[Measurement]) -> Work | None:
    """The work that measurements of one problem state; None if none does."""
    for measurement in measurements:
        terms = {name: value for name, value in measurement.state if isinstance(value, int | float)}
        if all(TERM + name in terms for name in PRODUCT):
            batch, m, n, k, itemsize = (float(terms[TERM + name]) for name in PRODUCT)
            return Work(2 * batch * m * n * k, itemsize * batch * (m * k + k * n + m * n))
        if moved := terms.get(TERM + "work.bytes"):
            return Work(None, float(moved))
    return None


PRODUCT = "work.batch", "work.M", "work.N", "work.K", "work.itemsize"


def rate_of(cell: Cell) -> Rate | None:
    """The rate of what runs at a size; None without a time, or where the work is unknown or nothing."""
    seconds = cell.winner.seconds if cell.winner is not None else None
    return None if seconds is None else _rate(cell, seconds)


def roofs(panels: Sequence[Panel]) -> list[Roof]:
    """The roof of each panel."""
    most_bytes, most_operations = dict[object, float](), dict[object, float]()
    for panel in panels:
        for rate in (_rate(cell, cell.best) for cell in panel.cells if cell.best is not None):
            if rate is not None:
                most_bytes[panel.device] = max(most_bytes.get(panel.device, 0.0), rate.bytes)
                most_operations[_kind(panel)] = max(most_operations.get(_kind(panel), 0.0), rate.operations or 0.0)
    return [Roof(most_operations.get(_kind(panel)) or None, most_bytes.get(panel.device)) for panel in panels]


def _kind(panel: Panel) -> object:
    return panel.device, frozenset(panel.dtypes)


def _rate(cell: Cell, seconds: float) -> Rate | None:
    work = cell.work
    if work is None or work.bytes <= 0:
        return None
    operations = None if work.operations is None else work.operations / seconds
    return Rate(operations, work.bytes / seconds, None if work.operations is None else work.operations / work.bytes)
