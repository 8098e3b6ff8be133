"""Values of rows of which one is made of all: stored by the loop along the rows where they pick an element of one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from polytile import options
from polytile.ir import expr
from tests import interpret
from tests.passes.helpers import loops, optimized

pytestmark = pytest.mark.usefixtures("on_gpu")


def cross_entropy(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(x.float(), target)


def given(rows: int = 24, columns: int = 40) -> tuple[torch.Tensor, torch.Tensor]:
    target = torch.randint(0, columns, (rows,))
    target[3] = -100
    return torch.randn(rows, columns), target


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_cross_entropy_picks_its_elements_where_rows_are(dtype: torch.dtype) -> None:
    x, target = given()
    program = optimized(cross_entropy, x.to(dtype), target)
    rows, total = loops(program)
    assert any(load.indirect for load in expr.loads(*rows.roots)) and len(rows.writes()) == 1
    assert not any(load.indirect for load in expr.loads(*total.roots)) and rows.writes() <= total.reads()
    (found,) = interpret.run(program, [x.to(dtype), target])
    torch.testing.assert_close(found, F.cross_entropy(x.to(dtype).float(), target))


def test_with_weights_of_classes() -> None:
    (x, target), weight = given(), torch.rand(40) + 0.5

    def weighted(x: torch.Tensor, target: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(x, target, weight)

    (found,) = interpret.run(optimized(weighted, x, target, weight), [x, target, weight])
    torch.testing.assert_close(found, F.cross_entropy(x, target, weight))


def both(x: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    most = x.amax(-1, keepdim=True)
    return most, (most.squeeze(-1) - x.gather(1, target[:, None]).squeeze(-1)).sum()


def unpicked(x: torch.Tensor, target: torch.Tensor) -> tuple[torch.Tensor]:
    return ((x.amax(-1) * target).sum(),)


@pytest.mark.parametrize("function,picks", [(both, True), (unpicked, False)])
def test_what_others_need_is_stored_and_what_nobody_picks_stays(function: Callable[..., Any], picks: bool) -> None:
    x, target = given()
    target = target.clamp(min=0)
    program = optimized(function, x, target)
    rows = loops(program)[0]
    assert any(load.indirect for load in expr.loads(*rows.roots)) is picks and len(rows.writes()) == 1 + picks
    for found, want in zip(interpret.run(program, [x, target]), function(x, target), strict=True):
        torch.testing.assert_close(found, want)


def test_a_core_goes_on_to_the_next_row() -> None:
    with options.override(interpret=False):
        rows, total = loops(optimized(cross_entropy, *given()))
    assert any(load.indirect for load in expr.loads(*total.roots)) and len(rows.writes()) == 2
