"""What all commands share: errors as one sentence on stderr, and the words for places, dates and sizes."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from polytile import options
from polytile.errors import PolytileError

FAILED = 2
"""Exit status when a command could not do what was asked; 1 is for a question answered with no."""

StorePath = Annotated[
    Path | None,
    typer.Option("--store", help="The store, a file or a cache directory; if not given, the cache directory in force."),
]


class PlainErrors(TyperGroup):
    """Commands whose PolytileErrors end the process with the message alone and status FAILED."""

    def invoke(self, context: Any) -> Any:
        try:
            return super().invoke(context)
        except PolytileError as error:
            typer.echo(f"polytile: {error}", err=True)
            raise typer.Exit(FAILED) from None


def store_at(path: Path | None) -> Path:
    """The store file that a command works on; it may not exist."""
    from polytile.store.reading import store_file

    return store_file(path if path is not None else Path(options.get("cache_dir")))


def date(seconds: float | None) -> str:
    """Seconds since 1970 as local date and minute."""
    return "–" if seconds is None else datetime.datetime.fromtimestamp(seconds).strftime("%Y-%m-%d %H:%M")


def sizes_text(sizes: Sequence[tuple[str, int]]) -> str:
    return " ".join(f"{name}={size}" for name, size in sizes)


def environment_text(facts: Mapping[str, str]) -> str:
    """An environment as words, without what is only for machines."""
    return ", ".join(f"{name} {value}" for name, value in sorted(facts.items()) if name != "method")


__all__ = ["FAILED", "PlainErrors", "StorePath", "date", "environment_text", "sizes_text", "store_at"]
