"""`polytile sizes`: the sizes that a running program sees, recorded and shown."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(
    name="sizes",
    help="Record the sizes that calls of a running program have, and show what was recorded.",
    no_args_is_help=True,
)

Recorded = Annotated[Path, typer.Argument(metavar="FILE", help="A file that `polytile sizes record` wrote.")]


@app.command("record", context_settings={"ignore_unknown_options": True})
def record_sizes(
    command: Annotated[
        list[str], typer.Argument(metavar="COMMAND", help="The program and its arguments, after `--`.")
    ],
    output: Annotated[Path, typer.Option("-o", "--output", help="The file to add to.")] = Path("sizes.json"),
) -> None:
    """Run a program, and record which sizes calls of its compiled functions have, and how often.

    Processes that the program starts are recorded too. The file is written every 20 seconds and when a process ends. The
    status is the program's. A program that cannot be started anew calls `polytile.record_sizes` itself.
    """
    from polytile.errors import SizesError
    from polytile.runtime import sizes_file

    try:
        sizes_file.add(output.absolute(), [])  # what is wrong with the file is said before the program runs
        done = subprocess.run(command, env={**os.environ, "POLYTILE_RECORD_SIZES": str(output.absolute())})
    except OSError as error:
        raise SizesError(f"{error.filename or output}: {error.strerror or error}.") from None
    programs = sizes_file.read(output).values()
    calls, different = sum(seen.total for seen in programs), sum(len(seen.calls) for seen in programs)
    typer.echo(
        f"{output}: {len(programs)} graphs, about {calls:.0f} calls at {different} combinations of sizes.", err=True
    )
    raise typer.Exit(done.returncode if done.returncode >= 0 else 128 - done.returncode)


@app.command("show")
def show_sizes(
    file: Recorded,
    most: Annotated[int, typer.Option(help="Combinations of sizes shown of each graph.", min=1)] = 20,
) -> None:
    """Show the sizes that were recorded, the most frequent first."""
    from polytile.report import Column, Table, show
    from polytile.runtime import sizes_file

    for seen in sizes_file.read(file).values():
        rows: list[tuple[object, ...]] = []
        covered = 0.0
        for sizes, calls in seen.ordered()[:most]:
            covered += calls
            rows.append((*sizes, calls, 100 * covered / seen.total))
        numbers = [Column(name, lambda size: f"{size}") for name in seen.names]
        columns = [
            *numbers,
            Column("calls", lambda calls: f"{calls:.0f}"),
            Column("% so far", lambda share: f"{share:.1f}"),
        ]
        notes = [f"{name}: {meaning}" for name, meaning in seen.names.items()]
        left = len(seen.calls) - len(rows)
        notes += [f"{left} more combinations."] if left else []
        show(Table.from_rows(f"Graph {seen.graph}, {seen.about or 'of an unknown place'}", columns, rows, notes))
