"""Running commands as a shell would, and stores for them to work on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import _dynamo
from typer.testing import CliRunner

from polytile import store
from polytile.cli.app import app
from polytile.cli.why_command import here
from polytile.dispatch import registry
from polytile.dispatch.registry import alive
from polytile.facts import Threads
from polytile.problem import Config, Measurement, Outcome, Problem
from polytile.store import Store

DIGEST = "228d962c0c6a657c"


def run(*words: object) -> Any:
    """The command's result; its errors are in `output` too. An exception that no command should raise is raised."""
    result = CliRunner().invoke(app, [str(word) for word in words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def new_process() -> None:
    """As if nothing had been compiled or decided, and no store read."""
    _dynamo.reset()
    for kernel in alive():
        kernel.forget()
    registry._defined.clear()
    store.forget()


def measured(
    sizes: Sequence[tuple[str, int]] = (("M", 64), ("N", 512)),
    candidate: str = "looped t1",
    seconds: float = 1e-5,
    outcome: Outcome = Outcome.OK,
    kernel: str = DIGEST,
    source: str = "abc",
    torch: str | None = None,
    threads: int | None = None,
) -> Measurement:
    """A measurement taken here, unless something else is said."""
    place = here()
    facts = dict(place.environment) if torch is None else {**place.environment, "torch": torch}
    problem = Problem(
        "loop", kernel, tuple(sizes), ("float32",), (Threads(threads or place.threads),), place.device
    )
    samples = (seconds, seconds, seconds) if outcome is Outcome.OK else ()
    return Measurement(problem, candidate, Config(), source, outcome, samples, environment=tuple(sorted(facts.items())))


def filled(path: Path, *measurements: Measurement) -> Path:
    store = Store(path)
    store.append(*measurements)
    store.close()
    return path


def named(store: Path, name: str) -> None:
    """A generated source beside the store, after which the kernel is called."""
    (store.parent / "kernels").mkdir(exist_ok=True)
    (store.parent / "kernels" / f"{name}-{'0' * 24}.cpp").write_text("")
