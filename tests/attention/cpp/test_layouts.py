"""Generated C++ attention kernels for packed and paged sequences, against float64."""

from __future__ import annotations

import pytest

from polytile.attention.problem import AttentionProblem
from tests.attention.cpp.test_forward import BF16, F32, SMALL_BLOCKS, check
from tests.attention.layouts import SETTINGS, arguments

EMPTY = ((), ()), ((0, 0), (3, 0)), ((2, 1), (0, 0)), ((1,), (1,))


@pytest.mark.parametrize("name", [name for name in SETTINGS if name not in ("packed", "used")])
@pytest.mark.parametrize("variant", SMALL_BLOCKS)
def test_every_sequence_sees_its_own_keys(variant: str, name: str) -> None:
    problem = AttentionProblem(F32, None, **SETTINGS[name])
    size, args = arguments(problem)
    check(problem, variant, size, args)
    for rows, keys in EMPTY:
        size, args = arguments(problem, rows, keys)
        check(problem, variant, size, args)


@pytest.mark.parametrize("variant", SMALL_BLOCKS)
def test_half_types_and_pages_of_odd_length(variant: str) -> None:
    problem = AttentionProblem(BF16, 0.2, **SETTINGS["paged"])
    for page in (1, 7):
        size, args = arguments(problem, (2, 30, 1), (3, 3, 1), Page=page)
        check(problem, variant, size, args)


def test_one_kernel_shares_long_sequences_out_over_threads() -> None:
    problem = AttentionProblem(F32, None, **SETTINGS["causal"])
    for variant in SMALL_BLOCKS:
        size, args = arguments(problem, (3, 1), (700, 2))
        check(problem, variant, size, args)
