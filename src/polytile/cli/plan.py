"""`polytile plan`: plan files, shown and compared."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from polytile.cli.plain import sizes_text

app = typer.Typer(name="plan", help="Show a plan file, or compare two.", no_args_is_help=True)


@app.command("show")
def show_plan(file: Annotated[Path, typer.Argument(metavar="FILE", help="A plan, as polytile.save_plan writes it.")]) -> None:
    """Show what a plan pins, and where it was made if that is not here."""
    from polytile.dispatch.planfile import Plan, differences, here
    from polytile.report import Table, show

    plan = Plan.read(file)
    rows = [(p.kernel, str(p.regime), p.candidate, sizes_text(p.sizes)) for p in plan.decisions]
    elsewhere = differences(plan.environment, here())
    notes = [f"Made elsewhere: {'; '.join(elsewhere)}."] if elsewhere else ["Made in an environment like this one."]
    show(Table.from_rows(f"Plan {file}", ["kernel", "regime", "candidate", "first met at"], rows, notes))


@app.command("diff")
def diff_plans(
    before: Annotated[Path, typer.Argument(metavar="BEFORE", help="The earlier plan.")],
    after: Annotated[Path, typer.Argument(metavar="AFTER", help="The later plan.")],
) -> None:
    """Show the decisions in which two plans differ. The status is 1 where they do."""
    from polytile.dispatch.planfile import Plan, compare
    from polytile.report import Table, show

    old, new = Plan.read(before), Plan.read(after)
    changes = compare(old, new)
    if not changes:
        typer.echo(f"{before} and {after} pin the same kernels.")
        return
    rows = []
    for change in changes:
        first = change.before.candidate if change.before else None
        second = change.after.candidate if change.after else None
        if first == second:
            second = f"{second}, from another source"
        rows.append((change.pinned.kernel, str(change.pinned.regime), first, second))
    show(Table.from_rows(f"{before} → {after}", ["kernel", "regime", "before", "after"], rows))
    raise typer.Exit(1)
