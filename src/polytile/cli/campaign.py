"""`polytile campaign`: many problems measured by many workers, and the results."""

from __future__ import annotations

import contextlib
import enum
import os
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from polytile import waits

if TYPE_CHECKING:
    from polytile.campaigns.board import Board, Result, Status
    from polytile.campaigns.results import Choice
    from polytile.report import Table

app = typer.Typer(
    name="campaign",
    help="Measure models and kernels at many sizes with many workers, and end with one table, a plan and learned models.",
    no_args_is_help=True,
)

Folder = Annotated[Path, typer.Argument(metavar="FOLDER", help="A campaign's folder.")]

TABLE, PLAN, MODELS = "table.json", "plan.json", "models"
"""Names of the results in a campaign's folder."""

MOST_ROWS = 40


class Workers(str, enum.Enum):
    """Where workers run."""

    local = "local"
    folder = "folder"
    ray = "ray"


@app.command("run")
def run_campaign(
    spec: Annotated[Path, typer.Argument(metavar="SPEC.toml", help="What to measure (docs/campaigns.md).")],
    workers: Annotated[
        Workers,
        typer.Option(
            help="local: processes of this machine. folder: those that `polytile campaign work FOLDER` starts, on any host. ray: "
            "actors of a Ray cluster."
        ),
    ] = Workers.local,
    folder: Annotated[
        Path | None, typer.Option(help="The campaign's folder. Default: the spec's name without .toml.")
    ] = None,
    count: Annotated[
        int,
        typer.Option(
            help="GPUs that this command's workers use; 0: all. On CPUs its workers; 0: one a machine, or with `folder` none.",
            min=0,
        ),
    ] = 0,
    sign: Annotated[Path | None, typer.Option(help="An SSH key to sign the table with.")] = None,
    again: Annotated[bool, typer.Option("--again", help="Try again what has failed before.")] = False,
) -> None:
    """Run a campaign, or go on with one that was stopped.

    Every measurement is kept as soon as its unit of work is done; a worker that ends or hangs costs the unit it had, which
    another takes over. Ctrl-C stops the campaign, and the same command goes on. The results are in the folder: table.json, its
    signature, plan.json, and models. The status is 1 where units are left or failed.
    """
    from polytile.campaigns import spec as specs

    read, root = specs.read(spec), folder or spec.with_suffix("")  # before what imports PyTorch
    from polytile.campaigns import results, run, trace
    from polytile.campaigns.board import Board
    from polytile.report import show

    store = run.store_of(read, root)
    board = Board(root, make=True, store=str(store))
    if again:
        board.forget_failures()
    place = str(getattr(store, "url", store))
    with trace.tracing(place, read.search):
        with waits.during(f"tracing what {spec} names"):
            traced = trace.trace(read, _resolve, lambda text: typer.echo(text, err=True))
        run.fill(board, traced, read.processes)
        if workers is Workers.folder and count == 0:
            typer.echo(f"Workers join by: polytile campaign work {root.absolute()}", err=True)
        with _progress(board) as watch:
            ended = run.measure(read, board, workers.value, count, _resolve, watch)
        with waits.during("choosing at all sizes"):
            pinned = results.write_plan(results.settle(traced), root / PLAN)
            chosen = results.choices(traced)
    signature = results.write_table(results.table_text(chosen, spec.stem), root / TABLE, sign)
    with waits.during("training models"):
        made, lacking = results.learn(store, root / MODELS, lambda text: typer.echo(text, err=True))
    for shown in _tables(chosen, ended.status, made):
        show(shown)
    for sentence in lacking:
        typer.echo(sentence)
    signed = f", signed in {signature}" if signature else ", not signed (--sign KEY)"
    why = f" Ended early: {ended.why}; the same command goes on." if ended.why else ""
    typer.echo(
        f"{len(chosen)} choices in {root / TABLE}{signed}; {pinned} decisions in {root / PLAN}. Kept in {store}.{why}"
    )
    raise typer.Exit(1 if ended.status.left or ended.status.failed else 0)


@app.command("work")
def work_for_campaign(
    folder: Folder,
    name: Annotated[str, typer.Option(help="The worker's name. Default: made of the host's and the process's.")] = "",
) -> None:
    """Work for a campaign until nothing is left to do, or it is stopped.

    May be started on any host that sees the folder, any number of times, and be killed at any moment. Give each worker its own
    GPU by CUDA_VISIBLE_DEVICES.
    """
    from polytile.campaigns.board import Board
    from polytile.campaigns.worker import Bench, work

    if work(Board(folder), name or f"{socket.gethostname()}-{os.getpid()}", Bench(_resolve)):
        os.execv(sys.executable, sys.orig_argv)


@app.command("status")
def show_status(folder: Folder) -> None:
    """Say how far a campaign is: what is done, who is working on what, what has failed. The status is 1 while units are left."""
    from polytile.campaigns.board import Board
    from polytile.report import Table, show

    board = Board(folder)
    status = board.status()
    about = {name: board.unit(name).about for name in (*status.taken, *status.failed)}
    rows = [(about[name], "in work", holder) for name, holder in status.taken.items()]
    rows += [(about[name], "failed", error) for name, error in status.failed.items()]
    show(Table.from_rows(f"Campaign {folder}", ["unit", "state", "by or why"], rows, [sentence(status)]))
    raise typer.Exit(1 if status.left else 0)


@app.command("verify")
def verify_table(table: Annotated[Path, typer.Argument(metavar="TABLE.json", help="A campaign's table.")]) -> None:
    """Say whether a table is as it was made, by the digest in it, and how to check its signature."""
    from polytile.campaigns.results import NAMESPACE, verify

    content = verify(table)
    typer.echo(f"{table}: {len(content['choices'])} choices of the campaign {content['campaign']}, unchanged.")
    signature = table.with_name(f"{table.name}.sig")
    if signature.exists():
        typer.echo(f"Who signed it: ssh-keygen -Y check-novalidate -n {NAMESPACE} -s {signature} < {table}")


def _resolve(about: Mapping[str, Any], device: str) -> tuple[Callable[..., Any], Sequence[tuple[Any, ...]]]:
    """The function that a unit names, and its calls."""
    from polytile.cli.targets import Kind, calls_of

    return calls_of(about["target"], list(about["shapes"]), Kind(about["dtype"], device))


def _workers(status: Status) -> str:
    return "1 worker" if len(status.workers) == 1 else f"{len(status.workers)} workers"


def sentence(status: Status) -> str:
    """How far a campaign is."""
    left = f", {status.left} left" if status.left else ""
    failed = f", {len(status.failed)} failed" if status.failed else ""
    done = status.done - len(status.failed)
    speed = status.seconds / max(1, status.done) / max(1, len(status.workers))
    time_left = f", about {status.left * speed:.0f} s more" if status.left and status.done and status.workers else ""
    share = f", {status.trying / status.device_seconds:.0%} of them with candidates on trial" if status.device_seconds else ""
    return (
        f"{done} of {status.units} units measured{failed}{left}; {_workers(status)}{time_left}, {status.lost} lost; "
        f"{status.device_seconds:.1f} s of devices{share}."
    )


@contextlib.contextmanager
def _progress(board: Board) -> Iterator[Callable[[Status, Result | None], None]]:
    """A bar on a terminal, a line for each unit elsewhere."""
    from rich.console import Console

    from polytile.report.progress import bars

    console = Console(stderr=True)
    if not console.is_terminal:

        def tell(status: Status, result: Result | None) -> None:
            if result is not None:
                said = result.error or f"measured in {result.seconds:.1f} s"
                console.print(f"[{status.done}/{status.units}] {said}", markup=False, highlight=False, soft_wrap=True)

        yield tell
        return
    with bars(console) as shown:
        task = shown.add_task("units", total=None)

        def draw(status: Status, result: Result | None) -> None:
            failed = f", {len(status.failed)} failed" if status.failed else ""
            described = f"{_workers(status)}{failed}"
            shown.update(task, description=described, completed=status.done, total=status.units)

        yield draw


def _tables(chosen: Sequence[Choice], status: Status, made: Sequence[Any]) -> Iterator[Table]:
    from polytile.cli.learn_report import reports
    from polytile.cli.plain import sizes_text
    from polytile.report import Column, Table
    from polytile.report.tables import micros, ratio

    shown = sorted(chosen, key=lambda choice: (-choice.calls, choice.kernel, choice.sizes))[:MOST_ROWS]
    rows = [
        (c.kernel, sizes_text(c.sizes), f"{c.calls:.0f}", c.candidate, c.seconds,
         c.library / c.seconds if c.library and c.seconds else None, c.grounds)
        for c in shown
    ]  # fmt: skip
    columns: list[Column | str] = [
        "kernel", "sizes", "calls", "candidate", Column("µs", micros), Column("× library", ratio), "grounds",
    ]  # fmt: skip
    notes = [sentence(status)]
    notes += [f"{len(chosen) - len(shown)} more choices in the table's file."] if len(chosen) > len(shown) else []
    notes += list(status.failed.values())
    yield Table.from_rows("Choices", columns, rows, notes)
    for model in made:
        yield reports(model)
