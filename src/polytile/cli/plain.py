"""What all commands share: errors as one sentence on stderr, and the words for places, dates and sizes."""

from __future__ import annotations

import contextlib
import datetime
import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from polytile import options, problem
from polytile.errors import PolytileError

if TYPE_CHECKING:
    from polytile.store.place import Place

FAILED = 2
"""Exit status when a command could not do what was asked; 1 is for a question answered with no."""

REQUIRED = ("torch", "numpy", "sympy")
"""Packages without which most commands do not run. `doctor` does, to say what is missing."""

StorePlace = Annotated[
    str | None,
    typer.Option(
        "--store",
        help="The store: a file, a cache directory, or a server as postgresql://user@host/database; if not given, the one "
        "in force.",
    ),
]


class PlainErrors(TyperGroup):
    """Commands that end with one sentence and status FAILED at a PolytileError, or where a package in REQUIRED is missing."""

    def invoke(self, context: Any) -> Any:
        try:
            return super().invoke(context)
        except PolytileError as error:
            typer.echo(f"polytile: {error}", err=True)
            raise typer.Exit(FAILED) from None
        except ModuleNotFoundError as error:
            if error.name not in REQUIRED:
                raise
            typer.echo(f"polytile: this command needs {error.name}, which is not installed; see `polytile doctor`.", err=True)
            raise typer.Exit(FAILED) from None


def store_at(named: str | None) -> Place:
    """The store that a command works on; it need not exist. Raises StoreError for a name that cannot be a store's."""
    from polytile.runtime import cache
    from polytile.store.place import FILE_NAME, place_of

    return place_of(named or options.get("store") or cache.within(options.cache_dir()) / FILE_NAME)


def date(seconds: float | None) -> str:
    """Seconds since 1970 as local date and minute."""
    return "–" if seconds is None else datetime.datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M")


def sizes_text(sizes: Sequence[tuple[str, int]]) -> str:
    """Sizes as `polytile why` takes them: "M=64 N=512"."""
    return problem.sizes_text(sizes, " ")


def environment_text(facts: Mapping[str, str]) -> str:
    """An environment as words, without what is only for machines."""
    return ", ".join(f"{name} {value}" for name, value in sorted(facts.items()) if name not in ("method", "flags"))


EXPLANATION = "Explanation: "
"""How torch's tracer begins the line that says what happened."""

TRACED = re.compile(r"failed to run FX node .* got (?P<error>\w+)\((?P<quote>['\"])(?P<message>.*?)(?P=quote)\)")
"""How it says that an operator has refused its arguments."""

LOGS_WHAT_IT_RAISES = "torch._subclasses.fake_tensor"
"""The logger on which torch puts the traceback of an error that it raises as well."""


def in_short(error: Exception) -> str:
    """An error's class and first line; of torch's tracer, whose first line is a heading, what stands below it or what an operator
    has said."""
    first, *others = str(error).strip().splitlines() or ["no message"]
    told = next((line.strip() for line in others if line.strip().startswith(EXPLANATION)), first).removeprefix(EXPLANATION)
    refused = TRACED.search(told)
    what = f"{refused['error']}: {refused['message']}" if refused else f"{type(error).__name__}: {told}"
    return what.rstrip(".")


@contextlib.contextmanager
def told_once() -> Iterator[None]:
    """Within the block torch does not log the traceback of an error that the command reports."""
    logger = logging.getLogger(LOGS_WHAT_IT_RAISES)

    def without_traceback(record: logging.LogRecord) -> bool:
        return not record.exc_info

    logger.addFilter(without_traceback)
    try:
        yield
    finally:
        logger.removeFilter(without_traceback)
