"""Wrapper backends are found by name, and packages outside polytile bring their own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import polytile
from polytile.errors import OptionError
from polytile.wrapper import Line, Wrapped, backend, backends, python, register_backend


@pytest.fixture(autouse=True)
def registry() -> Iterator[None]:
    before = dict(backends._BACKENDS)
    yield
    backends._BACKENDS.clear()
    backends._BACKENDS.update(before)


def named(text: str) -> backends.Backend:
    def make(name: str, lines: tuple[Line, ...]) -> Wrapped:
        return Wrapped(text, lambda args: [])

    return make


def test_a_registered_backend_is_found_by_name() -> None:
    register_backend("text", named("mine"))
    assert backend("text")("p", ()).source == "mine"


def test_a_backend_may_be_for_one_type_of_device() -> None:
    register_backend("text", named("any"))
    register_backend("text", named("for cuda"), device="cuda")
    assert backend("text", "cuda")("p", ()).source == "for cuda"
    assert backend("text", "cpu")("p", ()).source == "any"


def test_what_cannot_be_called_is_refused() -> None:
    with pytest.raises(OptionError, match="'text' has to be a function of a program's name and its lines; it is 4"):
        register_backend("text", 4)  # type: ignore[arg-type]


def test_pythons_own_may_be_replaced() -> None:
    register_backend("python", named("mine"))
    assert backend("python")("p", ()).source == "mine"


def test_an_unknown_name_is_refused_with_those_there_are() -> None:
    backend("python")
    with pytest.raises(OptionError, match=r"no wrapper backend 'rust'; there are: cpp, fx, (.+, )?python"):
        backend("rust")


def test_a_program_is_written_by_the_backend_that_the_option_names_for_its_device() -> None:
    seen: list[str] = []

    def watching(label: str) -> backends.Backend:
        return lambda name, lines: (seen.append(label), python.wrap(name, lines))[1]

    register_backend("mine", watching("any device"))
    register_backend("mine", watching("processor"), device="cpu")
    with torch.no_grad():
        x = torch.randn(3, 5)
        torch.testing.assert_close(polytile.compile(torch.exp, options={"wrapper": "mine"})(x), x.exp())
        assert seen == ["processor"]
        with pytest.raises(OptionError, match="option 'wrapper': there is no wrapper backend 'rust'"):
            polytile.compile(torch.exp, options={"wrapper": "rust"})(x)
