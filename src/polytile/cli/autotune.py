"""`polytile autotune --scan`: the autotuned kernels of a file, and what a tuner may trip over in them."""

from __future__ import annotations

from pathlib import Path

from polytile.autotuner.hazards import hazards_of
from polytile.cli.naming import TargetError
from polytile.cli.targets import module_of
from polytile.report.tables import Table


def scanned(paths: list[Path]) -> tuple[Table, int]:
    """All hazards of the autotuned kernels that these files define, and how many there are.

    Raises TargetError for a file that is not there or cannot be run, and where there is no Triton.
    """
    try:
        from triton.runtime.autotuner import Autotuner
    except ImportError:
        raise TargetError("kernels cannot be read without Triton, which is not installed: pip install 'polytile[gpu]'.") from None
    tuners = [(path, value) for path in paths for value in vars(module_of(path)).values() if _holds(value, Autotuner)]
    by_place = {id(value): (path, value) for path, value in tuners}
    hazards = [(path, hazard) for path, tuner in by_place.values() for hazard in hazards_of(_below(tuner, Autotuner))]
    rows = [[f"{path}:{one.line}", one.kernel, one.what, one.then] for path, one in hazards]
    notes = [f"{len(by_place)} autotuned kernels, {len(rows)} hazards."]
    return Table.from_rows("Hazards", ["place", "kernel", "what", "what to do"], rows, notes), len(rows)


def _holds(value: object, kind: type) -> bool:
    return _below(value, kind) is not None


def _below(value: object, kind: type) -> object:
    """The autotuner that a module's value is, or that is below its heuristics; None where there is none."""
    while value is not None and not isinstance(value, kind):
        value = vars(value).get("fn") if type(value).__module__.startswith("triton.") and hasattr(value, "__dict__") else None
    return value
