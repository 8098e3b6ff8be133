"""The commands of `polytile`, registered under one name."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from polytile import options, waits
from polytile.cli import campaign, learn, naming, plan, sizes, store
from polytile.cli.plain import PlainErrors, StorePlace, store_at
from polytile.version import __version__

app = typer.Typer(
    name="polytile",
    cls=PlainErrors,
    help="polytile compiles PyTorch once and serves every shape at full speed. These commands measure ahead of a program, and "
    "show what polytile has measured and chosen.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode="markdown",  # a paragraph of a docstring is one in the help, wherever its lines end
)
app.add_typer(store.app)
app.add_typer(plan.app)
app.add_typer(learn.app)
app.add_typer(sizes.app)
app.add_typer(campaign.app)

DtypeOfShapes = Annotated[str, typer.Option(help="Element type of the tensors made for --shapes.")]
DeviceOfShapes = Annotated[str, typer.Option(help="Device of the tensors made for --shapes: cpu, cuda, cuda:1.")]


@app.callback(invoke_without_command=True)
def before_all(
    context: typer.Context, version: bool = typer.Option(False, "--version", help="Print the version and stop.")
) -> None:
    if version:
        typer.echo(f"polytile {__version__}")
        raise typer.Exit
    if context.invoked_subcommand != "doctor":  # which tells of it among the rest
        options.check_environment()


@app.command()
def doctor() -> None:
    """Say what polytile finds on this machine, and what to do where something is missing.

    The status is 1 where polytile cannot work.
    """
    from polytile.cli.doctor import examine, worst
    from polytile.report import show

    findings = examine()
    show(findings.table())
    raise typer.Exit(1 if worst(findings) == "bad" else 0)


@app.command("why")
def explain_choice(
    kernel: Annotated[
        str,
        typer.Argument(
            metavar="KERNEL|FILE.py:FUNCTION",
            help="The beginning of a kernel's name or digest, or a part of its name; or a function, for all of its kernels.",
        ),
    ],
    sizes: Annotated[
        list[str] | None, typer.Argument(metavar="SIZE", help="A kernel's sizes: M=512 N=64, or the numbers in its order.")
    ] = None,
    shapes: Annotated[
        list[str] | None, typer.Option(help="For a function: shapes of one call's tensors, as for `polytile tune`.")
    ] = None,
    dtype: DtypeOfShapes = "float32",
    device: DeviceOfShapes = "cpu",
    plan: Annotated[
        Path | None, typer.Option(help="Answer as if this plan were in force. Default: the one that the option plan names.")
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Answer for every kernel that KERNEL fits, at every size that it was measured at.")
    ] = False,
    store: StorePlace = None,
) -> None:
    """Say which candidate runs a kernel at some sizes, on what grounds, and how the others did.

    The answer is for this machine, environment and number of threads. Where nothing is known, the nearest measurement
    is shown and in what it differs; the status is then 1. Where KERNEL fits several kernels they are listed, with what to type
    for each; the status is then 2. A function is compiled and called, and nothing is measured.
    """
    from polytile.cli import why_command
    from polytile.report import show

    if why_command.is_function(kernel):
        naming.file_and_name(kernel)
        from polytile.cli import why_program
        from polytile.cli.targets import Kind

        reports, known = why_program.answer(kernel, sizes or [], shapes or [], Kind(dtype, device), store_at(store), plan)
        status = 0 if known else 1
    else:
        reports, status = why_command.answer(kernel, sizes or [], store_at(store), plan, every)
    for report in reports:
        show(report)
    raise typer.Exit(status)


@app.command("tune")
def tune_ahead(
    target: Annotated[
        str,
        typer.Argument(metavar="FILE.py:NAME|MODULE:NAME|FILE.jsonl", help="A function, a kernel, or a list of them; see above."),
    ],
    shapes: Annotated[
        list[str] | None, typer.Option(help="Shapes of one call's tensors, as 64x512 or 64x512,512x256. May be given again.")
    ] = None,
    dtype: DtypeOfShapes = "float32",
    at: Annotated[
        list[str] | None, typer.Option(help="For a kernel: sizes to tune it at, as M=16,N=4096. May be given again.")
    ] = None,
    device: DeviceOfShapes = "cpu",
    save_plan: Annotated[Path | None, typer.Option(help="Write what was decided to a plan file.")] = None,
    sizes: Annotated[
        Path | None, typer.Option(help="Tune also at the most frequent sizes in this file, which `polytile sizes record` wrote.")
    ] = None,
    seconds: Annotated[float, typer.Option(help="Stop measuring after this many seconds; 0: no limit.", min=0)] = 0.0,
    quick: Annotated[
        bool, typer.Option("--quick", help="Measure only as much as a program does in its first calls, and nothing twice.")
    ] = False,
    exhaustive: Annotated[
        bool,
        typer.Option("--exhaustive", help="Measure every candidate, and on a GPU every config of a product. Takes hours."),
    ] = False,
) -> None:
    """Compile a function, or take a kernel, and call it at some sizes, so that later programs find everything measured.

    With --shapes, a function is called with random tensors of these shapes. Without, it is called once with nothing
    and returns what to tune: a callable and a list of argument tuples. A kernel by polytile.kernel or polytile.autotune
    is called at the sizes of --at, or else of its hints. A FILE.jsonl has a problem on each line:
    {"target": "FILE.py:NAME", "shapes": ["64x512"], "at": ["M=16"], "dtype": "float32", "device": "cuda"}; all but
    the target may be left out.

    Ctrl-C stops it and keeps everything that was measured, and so does the end of --seconds; the same command then goes on
    where it stopped. POLYTILE_ variables set the options.
    """
    if quick and exhaustive:
        raise typer.BadParameter("--quick measures little and --exhaustive everything; leave one of them out.")
    naming.check_target(target)
    from polytile.cli.targets import Kind, jobs_of
    from polytile.cli.tune import tune

    jobs = jobs_of(target, shapes or [], Kind(dtype, device), at or [])
    raise typer.Exit(tune(jobs, save_plan, seconds, not quick, exhaustive, sizes))


@app.command("autotune")
def scan_autotuned(
    files: Annotated[list[Path], typer.Option("--scan", metavar="FILE.py", help="A file to scan. May be given again.")],
) -> None:
    """Scan the autotuned Triton kernels of a file for what goes wrong when they are tuned. `polytile tune` tunes them.

    Kernels by `triton.autotune` and by `polytile.autotune` are read alike: whether one changes what it reads, adds to an output
    that nothing resets, loops up to a size that is not in its key, or names what it does not have. The files are imported; no
    kernel runs. The status is 1 where something was found.
    """
    naming.check_files(files)
    from polytile.cli.autotune import scanned
    from polytile.report import show

    table, hazards = scanned(files)
    show(table)
    raise typer.Exit(1 if hazards else 0)


@app.command("replay")
def replay_measurements(
    file: Annotated[
        str,
        typer.Argument(
            metavar="FILE|STORE", help="Measurements: a file that `store export` or another tuner wrote, or a store."
        ),
    ],
    kernel: Annotated[str, typer.Option(help="Replay only kernels with this in their name.")] = "",
    shuffle: Annotated[
        int | None, typer.Option(help="Seed of a random order of the problems. Default: as they were measured.")
    ] = None,
    choices: Annotated[bool, typer.Option("--choices", help="Show what was chosen on each problem.")] = False,
) -> None:
    """Replay the selector on measurements: what it would choose, how far that is from the fastest, and what it would measure.

    Nothing is compiled or timed; what was measured stands in for the device, whichever it was. It should have every
    candidate at every size: measure with POLYTILE_TUNE=all. POLYTILE_ variables set the options.
    """
    from polytile.report import show
    from polytile.store.place import place_of
    from polytile.store.transfer import held

    records = held(place_of(file)).records  # before the selector, which imports PyTorch
    from polytile.cli.replay import run, tables

    for table in tables(run(file, records, kernel, shuffle), choices):
        show(table)


@app.command("package")
def write_package(
    target: Annotated[
        str | None,
        typer.Argument(metavar="FILE.py:FUNCTION", help="The model, as for `polytile tune`; its first call is the example."),
    ] = None,
    output: Annotated[Path, typer.Option("-o", "--output", help="The file to write.")] = Path("model.ptp"),
    shapes: Annotated[
        list[str] | None, typer.Option(help="Shapes of the example's tensors, as 64x512 or 64x512,512x256.")
    ] = None,
    dtype: DtypeOfShapes = "float32",
    device: DeviceOfShapes = "cpu",
    hint: Annotated[list[int] | None, typer.Option(help="A size for which kernels are measured now. May be given again.")] = None,
    arch: Annotated[
        list[int] | None, typer.Option(help="Compile for this architecture of GPUs too, as 80. May be given again.")
    ] = None,
    weights_apart: Annotated[bool, typer.Option("--weights-apart", help="Write the weights to a file of their own.")] = False,
    folder: Annotated[bool, typer.Option("--folder", help="Write a folder in place of one file.")] = False,
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing: compare the results of the package OUTPUT with eager's.")
    ] = False,
    runtime: Annotated[
        Path | None, typer.Option(help="Write the C source that loads packages, and its header, to this folder.")
    ] = None,
) -> None:
    """Write a model as one file that runs without a compiler, and from C++ without Python (docs/packages.md).

    With --check nothing is written: the calls of FUNCTION are made by the package and by eager.
    """
    if target is None and runtime is None:
        raise typer.BadParameter("name a function as FILE.py:FUNCTION, or a folder by --runtime.")
    if target is not None:
        naming.check_target(target)
    from polytile.cli import package
    from polytile.cli.targets import Kind

    kind = Kind(dtype, device)
    if runtime is not None:
        for path in package.write_runtime(runtime):
            typer.echo(f"{path} written.")
    if target is not None and check:
        typer.echo(package.checked(target, shapes or [], kind, output))
    elif target is not None:
        typer.echo(package.written(target, shapes or [], kind, output, hint or None, weights_apart, folder, arch or []))


@app.command("report")
def write_report(
    stores: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="STORE|CAMPAIGN|PACKAGE|PROFILE",
            help="A store (a file, a cache directory, a server), a file that `store export` wrote, a campaign's folder, a "
            "package, or a call's profile, which `polytile.profile(...).save(FILE)` wrote. Default: the store in force. Two "
            "stores or two packages, the earlier first, are compared.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="The file to write, or with --csv the folder. Default: report.html, report."),
    ] = None,
    text: Annotated[bool, typer.Option("--text", help="Print the report as tables instead of writing HTML.")] = False,
    csv: Annotated[bool, typer.Option("--csv", help="Write a file of comma-separated values for each table.")] = False,
    kernel: Annotated[
        str, typer.Option(help="Report on kernels with this in their name, or whose digest begins with it, alone.")
    ] = "",
    every: Annotated[
        float, typer.Option(help="Write the file again every so many seconds until Ctrl-C; an open page follows. 0: once.", min=0)
    ] = 0.0,
) -> None:
    """Write one HTML file that shows what was measured and chosen, and why; or how the time of a call was spent.

    Of a store, a campaign or a package: what runs at which size; of the first two also how sure that is, and what a fixed
    choice would cost. Of a call's profile: what ran when, on the host and on the device.

    The file needs no network and nothing beside it. --text and --csv say the same. Nothing is compiled or measured; choices
    follow the rules of `polytile why` and the options in force.
    """
    from polytile.cli import report

    if text and csv:
        raise typer.BadParameter("--text prints the tables and --csv writes them; leave one of them out.")
    if text and output is not None:
        raise typer.BadParameter("--text prints to the terminal; leave out -o, or send the output to a file.")
    if every and (text or csv):
        raise typer.BadParameter("--every keeps a page up to date; leave out --text and --csv.")
    if (kernel or every) and not report.is_stores(stores or []):
        raise typer.BadParameter("--kernel and --every are for stores; the page on a package or a call has a filter.")
    if every:
        return report.keep_written(stores or [], kernel, output or Path("report.html"), every)
    with waits.during("reading measurements"):
        made = report.made_of(stores or [], kernel)
    if text:
        report.print_tables(made)
    elif csv:
        for path in report.write_csv(made, output or Path("report")):
            typer.echo(f"{path} written.")
    else:
        file = output or Path("report.html")
        report.write_html(made, file, stores or [])
        typer.echo(f"{file} written: {file.stat().st_size / 1000:.0f} KB. Open it in a browser.")


@app.command("configs")
def show_configs(
    family: Annotated[
        str, typer.Argument(metavar="FAMILY", help="Kind of device: cpu, cuda, rocm, xpu, or one that was registered.")
    ],
    m: Annotated[int, typer.Argument(metavar="M", help="Rows of the product.", min=1)],
    n: Annotated[int, typer.Argument(metavar="N", help="Columns of the product.", min=1)],
    k: Annotated[int, typer.Argument(metavar="K", help="Length of its sums.", min=1)],
    table: Annotated[str, typer.Option(help="The table: mm, int8_mm, ... Default: register_tiles on a CPU, else mm.")] = "",
    dtype: Annotated[str, typer.Option(help="Element type of the operands. Default: float32 on a CPU, else bfloat16.")] = "",
    exhaustive: Annotated[bool, typer.Option("--exhaustive", help="Start from the whole space instead of the table.")] = False,
    cap: Annotated[int | None, typer.Option(help="The largest number of configs to try.", min=1)] = None,
    device: Annotated[
        str, typer.Option(help="GPU whose limits count, such as H100 or A100. Default: H100 for cuda, else none.")
    ] = "",
) -> None:
    """List the configs that would be tried on a matrix product of M×K by K×N, and say why the others are left out."""
    from polytile.cli.configs import tables
    from polytile.report import show

    for each in tables(family, m, n, k, table, dtype, exhaustive, cap, device):
        show(each)


def main() -> None:
    """Runs the command that the process's arguments name; ends the process with its status."""
    app()
