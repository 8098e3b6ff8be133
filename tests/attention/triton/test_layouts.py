"""Generated attention kernels for packed and paged sequences, against float64."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from polytile.attention.arguments import operands, reference
from polytile.attention.problem import AttentionProblem
from polytile.attention.triton.schedules import generate
from polytile.codegen.triton import interpret
from polytile.problem import Config
from polytile.schedule.facts import Facts
from tests.attention.layouts import KEYS, ROWS, SETTINGS, arguments
from tests.attention.triton.interpreted import CHIP, config

F32, BF16 = torch.float32, torch.bfloat16
FLASH, PACKED, SPLIT = config("flash"), config("flash", packed=1), config("split", packed=1, waves=1)
CASES = {
    "causal": (FLASH, PACKED, SPLIT), "window": (FLASH,), "used": (PACKED,), "paged": (FLASH, SPLIT), "cache": (SPLIT,),
    "gathered": (FLASH,),
}  # fmt: skip
BOTH = [(how, name) for name, ways in CASES.items() for how in ways]


def check(
    problem: AttentionProblem,
    how: Config,
    rows: Sequence[int] = ROWS,
    keys: Sequence[int] = KEYS,
    wide: bool = False,
    **more: int,
) -> None:
    _, args = arguments(problem, rows, keys, **more)
    right = [a.double() if isinstance(a, torch.Tensor) and a.is_floating_point() else a for a in args]
    reference(problem)(*right)
    values = dict(zip(problem.size_names, args[len(problem.tensors) :], strict=True))
    made = {tensor.name: value for tensor, value in zip(problem.tensors, args, strict=False)}
    known = ("D", "Dv", "Hq", "Hkv", *(["Page"] if "Page" in values else []))
    exact = tuple((name, values[name]) for name in known)
    facts = Facts(frozenset(n for n, v in values.items() if v % 16 == 0), frozenset(made), wide, exact)
    assert interpret.run(generate(problem, how, facts, CHIP), made, values) == 0
    tolerance = {F32: 1e-5, BF16: 2e-2}[problem.dtype]
    got, wanted = operands(problem, args), operands(problem, right)
    for tensor in problem.tensors:
        if tensor.role == "out":
            one, other = getattr(got, tensor.name), getattr(wanted, tensor.name)
            torch.testing.assert_close(one.double(), other.double(), atol=tolerance, rtol=tolerance, equal_nan=True)


@pytest.mark.parametrize(("how", "name"), BOTH, ids=str)
def test_every_sequence_sees_its_own_keys(how: Config, name: str) -> None:
    check(AttentionProblem(F32, None, **SETTINGS[name]), how)


@pytest.mark.parametrize("how", [FLASH, SPLIT], ids=str)
def test_sequences_of_nothing_and_of_one_row(how: Config) -> None:
    problem = AttentionProblem(BF16, 0.2, **SETTINGS["causal"])
    for rows, keys in (((), ()), ((0, 0), (3, 0)), ((2, 1), (0, 0)), ((1,), (1,))):
        check(problem, how, rows, keys)


def test_pages_of_any_length_and_wide_positions() -> None:
    """One that blocks of keys divide too, whose number is then looked up once for a block."""
    problem = AttentionProblem(BF16, 0.2, **SETTINGS["paged"])
    for page in (1, 7, 32):
        check(problem, FLASH, (2, 20), (7, 6), page == 7, Page=page)


@pytest.mark.parametrize("name", ["causal", "window"])
def test_gradients_of_packed_sequences(name: str) -> None:
    problem = AttentionProblem(F32, 0.3, **{**SETTINGS[name], "lse": False}, backward=True)
    check(problem, config("backward"))
    check(problem, config("backward"), (1, 0), (0, 1))
