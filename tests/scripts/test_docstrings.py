"""Docstrings of what users call: they name every parameter and the errors there are, and their examples run."""

from __future__ import annotations

import builtins
import doctest
import inspect
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import polytile
from polytile import errors, options
from polytile.autotuner.tuner import Autotuner
from polytile.candidates.sources import Source
from polytile.compiler.explanation import Explanation
from polytile.compiler.plans import save_plan
from polytile.compiler.profiling import Profile
from polytile.counters import Counters
from polytile.dispatch.handwritten import Kernel
from polytile.packages.load import Package

FUNCTIONS = [
    *(value for name in polytile.__all__ if inspect.isfunction(value := getattr(polytile, name))),
    options.get, options.override, options.register, options.check,
]  # fmt: skip
CLASSES = [Autotuner, Counters, Explanation, Kernel, Package, Profile, Source]
"""What users hold: what public functions return, and what they derive from."""

SECTIONS = ("Parameters", "Returns", "Yields", "Raises", "Notes", "Examples")
"""Of a NumPy docstring, in their order."""


def sections(function: Callable[..., Any]) -> dict[str, str]:
    """The sections of a docstring by their headings; "" has what stands before the first."""
    text = inspect.getdoc(function) or ""
    found = re.split(r"^(\w+)\n-{3,}\n", text, flags=re.MULTILINE)
    return {"": found[0], **dict(zip(found[1::2], found[2::2], strict=True))}


def heads(section: str) -> list[str]:
    """The names that a section is about: its lines at the margin, which may list several."""
    lines = [line for line in section.splitlines() if line and not line.startswith(" ")]
    return [name.strip() for line in lines for name in line.split(",")]


def parameters(function: Callable[..., Any]) -> list[str]:
    stars = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    return [stars.get(each.kind, "") + name for name, each in inspect.signature(function).parameters.items() if name != "self"]


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: f"{function.__module__}.{function.__name__}")
def test_a_public_function_names_its_parameters_its_result_and_its_errors(function: Callable[..., Any]) -> None:
    found = sections(function)
    assert found[""].strip().partition("\n")[0].endswith(".")
    assert list(found)[1:] == [name for name in SECTIONS if name in found]
    documented, real = heads(found.get("Parameters", "")), parameters(function)
    if documented:
        assert sorted(documented) == sorted(real)
    else:
        assert all(name in found[""] for name in real), "what is no list of parameters names them in its text"
    for name in heads(found.get("Raises", "")):
        error = getattr(errors, name, getattr(builtins, name, None))
        assert isinstance(error, type) and issubclass(error, Exception), name


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_a_class_that_users_hold_says_what_it_and_its_methods_do(kind: type) -> None:
    assert kind.__doc__
    own = {name: value for name, value in vars(kind).items() if not name.startswith("_")}
    methods = {name: value for name, value in own.items() if inspect.isfunction(value) or isinstance(value, property)}
    assert not [name for name, value in methods.items() if not inspect.getdoc(value)]


def examples() -> Iterator[doctest.DocTest]:
    finder = doctest.DocTestFinder(recurse=False)
    for function in (*FUNCTIONS, save_plan):
        yield from (test for test in finder.find(function, function.__name__, globs={}) if test.examples)


@pytest.mark.parametrize("test", list(examples()), ids=lambda test: test.name)
def test_an_example_in_a_docstring_prints_what_it_says(test: doctest.DocTest, empty_cache: object) -> None:
    polytile.reset()
    said: list[str] = []
    result = doctest.DocTestRunner(verbose=False).run(test, out=said.append, clear_globs=False)
    assert result.attempted and not result.failed, "".join(said)
