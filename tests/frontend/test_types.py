"""What `polytile.compile` returns has the type of what it was given. `make lint` has mypy read this file, which runs as well."""

from __future__ import annotations

from collections.abc import Callable

import torch
from typing_extensions import assert_type

import polytile


def scaled(x: torch.Tensor, by: float = 2.0) -> torch.Tensor:
    return x * by


class Scale(torch.nn.Module):
    factor: int = 3

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.factor


@polytile.compile
def decorated(x: torch.Tensor, by: float = 2.0) -> torch.Tensor:
    return x + by


@polytile.compile(mode="default", options={"tune": "off"})
def decorated_with_options(x: torch.Tensor) -> tuple[torch.Tensor, int]:
    return x + 1, 1


def test_a_compiled_function_has_its_arguments_and_its_result() -> None:
    x = torch.ones(3)
    compiled = polytile.compile(scaled)
    assert_type(compiled(x, by=3.0), torch.Tensor)
    same: Callable[[torch.Tensor, float], torch.Tensor] = compiled
    assert same(x, 3.0).tolist() == [3.0] * 3
    assert_type(decorated(x), torch.Tensor)
    assert_type(decorated_with_options(x), tuple[torch.Tensor, int])
    assert decorated_with_options(x)[1] == 1

    def wrong() -> None:
        compiled("x")  # type: ignore[arg-type]
        decorated(x, bye=3.0)  # type: ignore[call-arg]
        polytile.compile(3)  # type: ignore[call-overload]

    assert callable(wrong)


def test_a_compiled_module_is_a_module_of_its_class() -> None:
    compiled = polytile.compile(Scale())
    assert_type(compiled, Scale)
    assert_type(compiled.factor, int)
    assert compiled.factor == 3 and compiled(torch.ones(2)).tolist() == [3.0, 3.0]
