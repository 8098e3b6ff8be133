"""`python -m scripts.options_page`: writes docs/options.md from the table of `polytile.options`."""

from __future__ import annotations

from pathlib import Path

from polytile.options import MODES, TABLE

PAGE = Path(__file__).parents[1] / "docs" / "options.md"

ABOUT = """Most programs need none. Each option can be set in three ways, the strongest first:

1. for one function, `polytile.compile(function, options={"shortlist": 6})`, or `options=` of `torch.compile`;
2. for a block of code, `with polytile.options.override(shortlist=6): ...`;
3. for a process, by an environment variable, `POLYTILE_SHORTLIST=6`.

A function keeps the options under which it was compiled. An unknown option or a bad value is an error (`OptionError`); an
environment variable that sets no option draws a warning. A package adds its own options with
`polytile.options.register(Option(...))` ([extending.md](extending.md)). This page is generated from
`src/polytile/options.py` by `python -m scripts.options_page`."""


def as_markdown() -> str:
    """The text of docs/options.md."""
    rows = ["| option | environment | default | meaning |", "| --- | --- | --- | --- |"]
    for option in TABLE:
        choices = f" {'Any of' if option.listed else 'One of'}: {', '.join(map(str, option.choices))}." if option.choices else ""
        name = f'<a id="{option.name}"></a>`{option.name}`'
        rows.append(f"| {name} | `{option.variable}` | `{option.default!r}` | {option.doc}{choices} |")
    return f"# Which settings are there?\n\n{ABOUT}\n\n" + "\n".join(rows) + f"\n\n{_modes_as_markdown()}\n"


def _modes_as_markdown() -> str:
    about = (
        "`mode=` of `torch.compile` and of `polytile.compile` stands for some of these options. An option that is given beside "
        "a mode overrides it; a mode overrides `override` and the environment."
    )
    rows = ["| mode | options | what it does |", "| --- | --- | --- |"]
    for mode in MODES:
        given = ", ".join(f"`{name}={value}`" for name, value in mode.options.items()) or "–"
        rows.append(f"| `{mode.name}` | {given} | {mode.doc} |")
    return f"## Modes\n\n{about}\n\n" + "\n".join(rows)


if __name__ == "__main__":
    PAGE.write_text(as_markdown(), encoding="utf-8")
