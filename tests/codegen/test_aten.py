"""Calls of the library's operators: what is called, on what."""

from __future__ import annotations

import weakref

import pytest
import torch

from polytile.candidates.library.loops import _compiled, _Look, _Step, composed
from polytile.ir.library_call import Made

aten = torch.ops.aten


def look(at: int, tensor: torch.Tensor, offset: int = 0, whole: bool = False) -> _Look:
    return _Look(at, whole, tensor.dtype, tuple(tensor.shape), tensor.stride(), offset)


@pytest.mark.parametrize("shape", [(3, 4), (12,), (4, 3)], ids=str)
def test_tensors_of_other_shapes_are_looked_at_in_those_of_the_call(shape: tuple[int, ...]) -> None:
    x, out = torch.rand(3, 4), torch.empty(3, 4)
    composed([_Step(0, torch.erf, (look(0, x),), {"out": look(1, out)})])((x.view(shape), out.view(shape)))
    assert torch.equal(out, torch.erf(x))


def test_lists_of_tensors_and_places_behind_the_first_element_are_filled_in() -> None:
    base = torch.arange(12.0)
    rows = [look(0, torch.empty(2, 3), offset=k) for k in (0, 6)]
    joined = composed([_Step(0, torch.cat, (rows, 1), {})])((base,))
    assert torch.equal(joined, base.view(2, 2, 3).permute(1, 0, 2).reshape(2, 6))
    flat = composed([_Step(0, torch.erf, (look(0, torch.empty(3, 4), whole=True),), {})])((base,))
    assert torch.equal(flat, torch.erf(base.view(3, 4)))


def test_results_go_from_call_to_call_and_are_given_up_after_their_last_use() -> None:
    x, kept, alive = torch.rand(3, 4), torch.empty(3), list[bool]()
    first = weakref.WeakSet[torch.Tensor]()

    def doubled(t: torch.Tensor) -> torch.Tensor:
        first.add(made := t * 2)
        return made

    def greatest(t: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return tuple(t.max(1))

    def noting(t: torch.Tensor) -> torch.Tensor:
        alive.append(bool(first))
        return t.exp()

    steps = [
        _Step(0, doubled, (look(0, x),), {}),
        _Step(1, greatest, (Made(0),), {}, ((0, look(1, kept)),)),
        _Step(2, noting, (Made(1, 0),), {}),
    ]
    last = composed(steps)((x, kept))
    torch.testing.assert_close(last, (2 * x).amax(1).exp())
    torch.testing.assert_close(kept, (2 * x).amax(1))
    assert alive == [False]


def test_calls_at_other_sizes_compile_no_text() -> None:
    """They run in place of kernels that are not decided yet, and wait for nothing."""

    def at(rows: int) -> None:
        x, out = torch.rand(rows, 4), torch.empty(rows, 4)
        composed([_Step(0, torch.erf, (look(0, x),), {"out": look(1, out)})])((x, out))
        assert torch.equal(out, torch.erf(x))

    at(3)
    before = _compiled.cache_info().misses
    for rows in (5, 70, 900):
        at(rows)
    assert _compiled.cache_info().misses == before
