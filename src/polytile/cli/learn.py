"""`polytile learn`: measurements collected, models trained on them, judged and shown."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from polytile import options, waits
from polytile.errors import PolytileError

if TYPE_CHECKING:
    from polytile.learn.examples import Example, Examples
    from polytile.learn.model import Trained
    from polytile.store.reading import Record

app = typer.Typer(
    name="learn",
    help="Collect measurements, train models on them that choose without measuring, and see how good they are.",
    no_args_is_help=True,
)



class LearnError(PolytileError):
    """The subject of `polytile learn` does not exist."""


COLLECTED = "collected.sqlite3"
"""The store in the cache directory that `collect` fills by default."""

Measured = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="FILE",
        help="Measurements: stores, or files that `store export` wrote. Default: what `collect` has collected here.",
    ),
]
Family = Annotated[str, typer.Option(help="Only this family of problems: mm, loop, ...")]


@app.command("collect")
def collect_measurements(
    operations: Annotated[str, typer.Option(help="What to measure, as mm,softmax; `--operations list` names all.")] = "",
    dtypes: Annotated[str, typer.Option(help="Element types, comma-separated.")] = "float32",
    device: Annotated[str, typer.Option(help="Where to measure: cpu, cuda, cuda:1.")] = "cpu",
    count: Annotated[int, typer.Option(help="Problems of each operation and type.", min=1)] = 50,
    seconds: Annotated[float, typer.Option(help="Begin no further problem after so many seconds; 0: no limit.", min=0)] = 0.0,
    seed: Annotated[int, typer.Option(help="Seed of the sizes that are drawn.")] = 0,
    most: Annotated[int, typer.Option(help="Multiply-adds, or elements, of the largest problem; 0: the device's own limit.")] = 0,
    into: Annotated[Path | None, typer.Option(help="The store to fill. Default: one in the cache directory.")] = None,
) -> None:
    """Measure every candidate of some operations at random, round and odd sizes. It takes minutes to hours; --seconds ends it.

    What is measured goes to a store of its own, which programs do not choose by. The same command goes on where it stopped;
    Ctrl-C and the end of --seconds keep what was measured. POLYTILE_ variables set the options: POLYTILE_ISOLATION=never
    spares the worker process in which each new kernel first runs.
    """
    from polytile.cli.learn_collect import Wanted, collect
    from polytile.learn.problems import OPERATIONS

    if operations == "list":
        for operation in OPERATIONS.values():
            typer.echo(operation.name)
        return
    if not operations:
        raise typer.BadParameter(
            f"name what to measure, such as --operations mm,softmax; `list` names all. {count} problems of each operation and "
            "type are drawn (--count), which takes minutes to hours (--seconds)."
        )
    unknown = [name for name in options.parts(operations) if name not in OPERATIONS]
    if unknown:
        raise typer.BadParameter(f"there is no operation {unknown[0]!r}; choose from {', '.join(OPERATIONS)}.")
    wanted = Wanted(options.parts(operations), options.parts(dtypes), device, count, seed, most)
    raise typer.Exit(collect(wanted, into or _collected(), seconds))


@app.command("train")
def train_models(
    measured: Measured = None,
    family: Family = "",
    out: Annotated[Path | None, typer.Option(help="Folder for the models. Default: where programs of this user look.")] = None,
    python: Annotated[bool, typer.Option("--python", help="Write each model as plain Python too.")] = False,
) -> None:
    """Train a model for each family of problems and kind of device, and say how good it is.

    A fifth of the problems, by their sizes, is held out. A model that is no better than the prediction there is written too,
    but programs do not use it, and the status is 1.
    """
    collected = _collected_at(measured)  # before what imports PyTorch
    from polytile.cli.learn_report import reports
    from polytile.learn import emit, installed
    from polytile.learn.model import save
    from polytile.learn.train import train
    from polytile.report import show

    status, folder = 0, out or installed.users()
    for chosen in _families(_examples(collected), family).values():
        with waits.during(f"training a model of {len(chosen)} problems"):
            model = train(chosen, typer.echo)
        path = folder / model.file_name
        save(model, path)
        if python:
            path.with_suffix(".py").write_text(emit.python(model), encoding="utf-8")
        show(reports(model))
        why = model.why_unused()
        typer.echo(f"Written to {path}, but not to be used: {why}." if why else f"Written to {path}.")
        status = 1 if why else status
    raise typer.Exit(status)


@app.command("evaluate")
def evaluate_models(
    measured: Measured = None,
    family: Family = "",
    model: Annotated[Path | None, typer.Option(help="The file of the model to judge. Default: those that programs use.")] = None,
    everything: Annotated[
        bool, typer.Option("--everything", help="Judge on all problems, those that a model may have been trained on too.")
    ] = False,
    folds: Annotated[
        bool, typer.Option("--folds", help="Train five models anew, each without a fifth of the problems, and judge them there.")
    ] = False,
) -> None:
    """Say what models choose on measured problems, against the fastest and against the prediction.

    Judged are the problems that no model is trained on: a fifth of all, by their sizes. The status is 1 where a model is no
    better than the prediction.
    """
    collected = _collected_at(measured)  # before what imports PyTorch
    from polytile.cli.learn_report import decisions, worst
    from polytile.learn.examples import TEST
    from polytile.learn.score import cases, geomean
    from polytile.learn.train import held_out
    from polytile.report import show

    status = 0
    for (of, architecture), chosen in _families(_examples(collected), family).items():
        if folds:
            judged = list(held_out(chosen))
        else:
            judged = [(_model(of, architecture, model), [e for e in chosen if everything or e.fold == TEST])]
        for table in decisions(f"{of} on {architecture}", judged):
            show(table)
        asked_cases = [case for trained, asked in judged for case in cases(trained, asked)]
        show(worst(asked_cases))
        better = geomean(case.regret for case in asked_cases) < geomean(case.prior[0] for case in asked_cases)
        status = status if better else 1
    raise typer.Exit(status)


@app.command("show")
def show_models(
    model: Annotated[Path | None, typer.Argument(metavar="FILE", help="A model. Default: all that programs use.")] = None,
    python: Annotated[bool, typer.Option("--python", help="Print the trees as Python.")] = False,
) -> None:
    """Show the models that programs use: what they were trained on, how good they are, and where."""
    from polytile.cli.learn_report import reports
    from polytile.learn import emit, installed
    from polytile.learn.model import load
    from polytile.report import show

    models = (load(model),) if model is not None else installed.models()
    for each in models:
        if python:
            typer.echo(emit.python(each))
        else:
            show(reports(each))
    if not models:
        typer.echo("Programs here use no learned model; `polytile learn train` makes one.")


def _collected() -> Path:
    from polytile.runtime import cache

    return cache.within(options.cache_dir()) / COLLECTED


def _collected_at(named: Sequence[str] | None) -> dict[str, tuple[Record, ...]]:
    """The measurements at each place that is named; by default, those that `collect` has made. Raises LearnError where it has
    made none, and StoreError where a place has none to read."""
    from polytile.store.place import place_of
    from polytile.store.transfer import held

    if not named and not _collected().exists():
        raise LearnError("nothing was collected here yet; run `polytile learn collect` first, or name stores.")
    return {name: held(place_of(name)).records for name in named or [str(_collected())]}


def _examples(collected: Mapping[str, Sequence[Record]]) -> Examples:
    """The examples among measurements. Raises LearnError where there are none."""
    from polytile.learn.examples import examples

    learnable = examples(itertools.chain.from_iterable(collected.values()))
    if not learnable.examples:
        raise LearnError(
            f"{', '.join(collected)} has nothing to learn from: {learnable.alone} problems without two candidates that ran while "
            f"nothing else had the cores, {learnable.without_terms} measured before predictions said what they are made of. Run "
            "polytile learn collect on a machine that is free."
        )
    return learnable


def _families(found: Examples, family: str) -> dict[tuple[str, str], list[Example]]:
    chosen = {named: of for named, of in found.families().items() if family in ("", named[0])}
    if not chosen:
        there = ", ".join(sorted({named[0] for named in found.families()}))
        raise LearnError(f"there are no measurements of the family {family!r}; there are some of {there}.")
    return chosen


def _model(family: str, architecture: str, file: Path | None) -> Trained:
    from polytile.learn import installed
    from polytile.learn.model import load

    if file is not None:
        return load(file)
    trained = next((m for m in installed.models() if (m.family, m.architecture) == (family, architecture)), None)
    if trained is None:
        raise LearnError(f"programs here use no model of {family} on {architecture}; name one with --model, or train one.")
    return trained
