"""Configs of flex attention: defaults by type, head size and capability, and the sets that are tried."""

from __future__ import annotations

from dataclasses import astuple

import pytest

from polytile.matmul.configs import attention, heuristic


@pytest.mark.parametrize(
    ("dtype", "head_dim", "capability", "wanted"),
    [
        ("bfloat16", 64, 90, (128, 128, 3, 4)),
        ("bfloat16", 64, 100, (128, 128, 3, 4)),
        ("bfloat16", 64, 86, (128, 64, 3, 4)),
        ("float16", 128, 90, (128, 128, 3, 8)),
        ("bfloat16", 64, 75, (128, 64, 3, 4)),
        ("bfloat16", 96, 90, (128, 64, 3, 4)),
        ("float32", 96, 90, (64, 64, 3, 4)),
        ("bfloat16", 512, 90, (64, 32, 3, 4)),
        ("float32", 512, 80, (32, 16, 3, 4)),
    ],
)
def test_forward_defaults(dtype: str, head_dim: int, capability: int, wanted: tuple[int, ...]) -> None:
    assert astuple(attention.forward(heuristic("cuda"), dtype, head_dim, capability)) == wanted


@pytest.mark.parametrize(
    ("dtype", "head_dim", "capability", "wanted"),
    [
        ("float32", 64, 90, (16, 16, 1, 4)),
        ("bfloat16", 64, 90, (64, 64, 3, 4)),
        ("bfloat16", 128, 90, (64, 128, 3, 8)),
        ("bfloat16", 256, 90, (64, 64, 2, 4)),
        ("float16", 64, 80, (32, 128, 3, 4)),
        ("float16", 128, 80, (64, 64, 3, 4)),
        ("float16", 128, 86, (64, 64, 2, 4)),
        ("float16", 128, 89, (64, 64, 2, 4)),
        ("float16", 32, 80, (64, 64, 2, 4)),
        ("float16", 64, 75, (16, 16, 1, 4)),
    ],
)
def test_backward_defaults(dtype: str, head_dim: int, capability: int, wanted: tuple[int, ...]) -> None:
    assert astuple(attention.backward(heuristic("cuda"), dtype, head_dim, capability)) == wanted


def test_decoding_defaults() -> None:
    cuda = heuristic("cuda")
    assert astuple(attention.decode(cuda, "bfloat16", 128, 90)) == (64, 3, 2)
    assert astuple(attention.decode(cuda, "float32", 128, 90)) == (64, 3, 2)
    assert astuple(attention.decode(cuda, "float32", 256, 90)) == (64, 1, 2)
    assert astuple(attention.decode(cuda, "bfloat16", 128, 80)) == (64, 1, 2)
    assert astuple(attention.decode(heuristic("rocm"), "bfloat16", 128, 0))[:3] == (64, 1, 4)


def test_rocm_has_defaults_of_its_own() -> None:
    rocm = heuristic("rocm")
    assert astuple(attention.forward(rocm, "bfloat16", 128, 0)) == (128, 64, 1, 8, 0, 0, 2)
    assert astuple(attention.forward(rocm, "bfloat16", 96, 0))[:4] == (128, 64, 1, 4)


def test_the_sets_that_are_tried() -> None:
    cuda, rocm = heuristic("cuda"), heuristic("rocm")
    assert len(attention.forward_set(cuda)) == 5 and len(attention.decode_set(cuda)) == 3
    assert len(attention.forward_set(cuda, exhaustive=True)) == 4 * 3 * 4 * 3
    assert len(attention.backward_set(cuda, exhaustive=True)) == 10 * 4 * 3
    assert len(attention.decode_set(cuda, exhaustive=True)) == 4 * 4 * 3
    backward = attention.backward_set(cuda)
    assert len(backward) == 4 * 4 + 2 * 4 * 2
    assert all(c.num_warps == 4 or c.block_n == 128 for c in backward)
    assert {c.num_stages for c in attention.forward_set(rocm)} == {1, 2}
    assert len(attention.forward_set(rocm, exhaustive=True)) == 4 * 3 * 2 * 3 * 2 * 2
    assert len(attention.decode_set(rocm)) == 6
