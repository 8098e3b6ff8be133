"""The commands of `polytile`, registered under one name."""

from __future__ import annotations

import typer

from polytile import __version__

app = typer.Typer(
    name="polytile",
    help="polytile compiles PyTorch once and serves every shape at full speed. These commands look at what it does.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


@app.callback(invoke_without_command=True)
def version_option(version: bool = typer.Option(False, "--version", help="Print the version and stop.")) -> None:
    if version:
        typer.echo(f"polytile {__version__}")
        raise typer.Exit


@app.command()
def doctor() -> None:
    """Say what polytile finds on this machine, and what to do where something is missing."""
    from polytile.cli.doctor import examine, worst
    from polytile.report import show

    findings = examine()
    show(findings.table())
    raise typer.Exit(1 if worst(findings) == "bad" else 0)


def main() -> None:
    """Runs the command that the process's arguments name; ends the process with its status."""
    app()


__all__ = ["app", "main"]
