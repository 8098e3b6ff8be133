"""Operators that make tensors: constants, ranges, identity, copies in a memory format."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))
from lowering import check, check_each, library_calls, lower, run
from values import ALL, FLOATS


@pytest.mark.parametrize("dtype", ALL, ids=str)
def test_constants(dtype: torch.dtype) -> None:
    check_each(
        {
            "full": lambda x: torch.full((x.shape[0], 3), 3, dtype=dtype),
            "zeros": lambda x: torch.zeros(4, x.shape[1], dtype=dtype),
            "ones": lambda x: torch.ones(x.shape, dtype=dtype),
            "full_like": lambda x: torch.full_like(x, 2),
            "full_like other type": lambda x: torch.full_like(x, 2, dtype=torch.float64),
            "zeros_like": torch.zeros_like,
            "ones_like": torch.ones_like,
            "new_full": lambda x: x.new_full((2, 2), 1),
            "new_zeros": lambda x: x.new_zeros(5),
            "new_ones": lambda x: x.new_ones(x.shape[1]),
            "scalar_tensor": lambda x: torch.scalar_tensor(3, dtype=dtype),
            "fill": lambda x: torch.fill(x, 5),
            "fill tensor": lambda x: torch.fill(x, torch.ones((), dtype=torch.float64)),
            "tensor of numbers": lambda x: torch.tensor([1, 0, 1], dtype=dtype),
            "eye": lambda x: torch.eye(x.shape[0], dtype=dtype),
            "eye rectangular": lambda x: torch.eye(x.shape[0], x.shape[1], dtype=dtype),
        },
        torch.ones(3, 5).to(dtype),
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int32], ids=str)
def test_ranges(dtype: torch.dtype) -> None:
    check_each(
        {
            "end": lambda x: torch.arange(x.shape[0], dtype=dtype),
            "start, end": lambda x: torch.arange(2, x.shape[0] + 4, dtype=dtype),
            "step": lambda x: torch.arange(1, 40, 3, dtype=dtype),
            "down": lambda x: torch.arange(x.shape[0], -5, -2, dtype=dtype),
            "real step": lambda x: torch.arange(0.5, 7, 0.75 if dtype.is_floating_point else 1.75, dtype=dtype),
            "linspace": lambda x: torch.linspace(-1, 2, 7, dtype=dtype),
            "linspace of one": lambda x: torch.linspace(3, 9, 1, dtype=dtype),
        },
        torch.ones(6),
        tolerances={torch.float32: 1e-6, torch.bfloat16: 1e-2},
    )


def test_ranges_without_a_type_follow_their_numbers() -> None:
    check_each(
        {"int": lambda x: torch.arange(x.shape[0]), "float": lambda x: torch.arange(0, 3, 0.5) + x.sum()},
        torch.ones(6),
        tolerances={torch.float32: 1e-6},
    )


def test_triangles() -> None:
    check_each(
        {
            "tril": torch.tril,
            "triu": lambda x: torch.triu(x, 1),
            "tril_indices": lambda x: torch.tril_indices(4, 5, 1),
            "triu_indices": lambda x: torch.triu_indices(5, 4, -1),
        },
        torch.randn(4, 6),
    )


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_copies(dtype: torch.dtype) -> None:
    x = torch.randn(2, 3, 4, 5).to(dtype)
    check_each(
        {
            "clone": torch.clone,
            "clone of a view": lambda x: x.transpose(1, 3).clone(),
            "contiguous": lambda x: x.permute(0, 2, 3, 1).contiguous(),
            "channels_last": lambda x: x.clone(memory_format=torch.channels_last),
            "to channels_last": lambda x: x.to(memory_format=torch.channels_last) + 1,
        },
        x,
    )


def test_uninitialised_memory_has_the_traced_layout() -> None:
    program = lower(lambda x: (torch.empty(x.shape), torch.empty_like(x.t()), x.new_empty(3)), torch.randn(4, 5))
    assert library_calls(program) == []
    got = run(program, [torch.randn(4, 5)])
    assert [tuple(t.shape) for t in got] == [(4, 5), (5, 4), (3,)]
    assert got[1].stride() == (1, 5)


@pytest.mark.parametrize("shape", [(0,), (0, 3), (3, 0)], ids=str)
def test_empty_results(shape: tuple[int, ...]) -> None:
    check(lambda x: torch.zeros_like(x) + torch.full(shape, 2.0), torch.randn(shape))
    check(lambda x: torch.arange(0), torch.randn(3))


def test_a_copy_does_not_see_later_changes_of_its_source() -> None:
    def changed(x: torch.Tensor) -> torch.Tensor:
        kept = x.clone()
        return kept + x.add(1)

    check(changed, torch.randn(5))


def test_complex_constants_are_left_to_the_library() -> None:
    assert library_calls(lower(lambda x: x + torch.ones(4, dtype=torch.complex64), torch.randn(4)))
