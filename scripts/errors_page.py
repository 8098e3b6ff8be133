"""`python -m scripts.errors_page`: writes docs/errors.md from the docstrings of `polytile.errors`."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from pathlib import Path

from polytile import errors

PAGE = Path(__file__).parents[1] / "docs" / "errors.md"

INTRODUCTION = """# Which errors can I get?

Every error that polytile raises on purpose is a `PolytileError`. Its message says what was asked, what is so, and what to do.
Many are also one of Python's own errors, so code that catches `ValueError` or `IndexError` catches them too. Errors of your own
program can be caught as in eager; what a kernel finds while it runs, such as an index out of range, has its name in the message.

The classes are in `polytile.errors`. `python -m scripts.errors_page` writes this page from their docstrings."""


def catalogue() -> Iterator[type[errors.PolytileError]]:
    """The error classes, in the order of the module."""
    for value in vars(errors).values():
        if inspect.isclass(value) and issubclass(value, errors.PolytileError) and value is not errors.PolytileError:
            yield value


def as_markdown() -> str:
    """The text of docs/errors.md."""
    rows = ["| error | is also | meaning |", "| --- | --- | --- |"]
    for error in catalogue():
        bases = ", ".join(f"`{base.__name__}`" for base in error.__bases__ if base is not errors.PolytileError)
        name, meaning = error.__name__, " ".join(inspect.cleandoc(error.__doc__ or "").split())
        rows.append(f'| <a id="{name}"></a>`{name}` | {bases} | {meaning} |')
    return f"{INTRODUCTION}\n\n" + "\n".join(rows) + "\n"


if __name__ == "__main__":
    PAGE.write_text(as_markdown(), encoding="utf-8")
