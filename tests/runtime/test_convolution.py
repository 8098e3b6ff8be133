"""Convolutions by packed weights: each size of images finds the packing that its call asks for, or eager's own call."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor

from polytile.runtime import convolution, native
from polytile.runtime.convolution import PackedConvolution

GIVEN = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1)
TRANSPOSED = ([2, 1], [1, 0], [1, 2], True, [1, 0], 2)
LAST = torch.channels_last

pytestmark = pytest.mark.skipif(
    not (torch.backends.mkldnn.is_available() and native.module() is not None),
    reason="no packed weights here: no oneDNN, or no compiler",
)


def of(weight: Tensor, limit: int = 1 << 30, given: tuple[Any, ...] = GIVEN) -> PackedConvolution:
    return PackedConvolution(tuple(weight.shape), weight.stride(), weight.dtype, given, limit)


def is_right(run: PackedConvolution, images: Tensor, weight: Tensor, given: tuple[Any, ...] = GIVEN) -> bool:
    got, want = run(images, weight, None, *given), torch.convolution(images.double(), weight.double(), None, *given)
    return bool((got.double() - want).abs().max() <= 1e-5 * want.abs().max())


IN_A_PROCESS = """
import torch
from polytile.runtime.convolution import PackedConvolution
transposed = GIVEN[3]
weight = torch.randn(64, 128, 4, 4) if transposed else torch.randn(256, 256, 3, 3)
run = PackedConvolution(tuple(weight.shape), weight.stride(), weight.dtype, GIVEN, 1 << 30)
sizes = [(2, 14, 14), (1, 8, 6), (3, 28, 31), (1, 56, 56)]
calls = [torch.randn(n, weight.shape[not transposed], h, w) for n, h, w in sizes]
calls = [images.contiguous(memory_format=torch.channels_last) for images in calls]
for images in calls:
    run(images, weight, None, *GIVEN)
print("warm", sum(site.made for site in run.sites), flush=True)
for images in calls:
    run(images, weight, None, *GIVEN)
"""


@pytest.mark.parametrize("given", [GIVEN, ([2, 2], [1, 1], [1, 1], True, [0, 0], 1)], ids=["plain", "transposed"])
@pytest.mark.parametrize("isa", ["AVX2", "ALL"])
def test_no_weight_is_reordered_in_a_call_at_sizes_met_before(isa: str, given: tuple[Any, ...]) -> None:
    environment = {**os.environ, "ONEDNN_MAX_CPU_ISA": isa, "ONEDNN_VERBOSE": "1"}
    program = IN_A_PROCESS.replace("GIVEN", repr(given))
    ran = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=240)
    assert ran.returncode == 0, ran.stderr
    first, _, later = ran.stdout.partition("warm")
    assert "reorder" in first and "convolution" in later
    assert not [line for line in later.splitlines() if "reorder" in line]
    assert 1 <= int(later.split()[0]) <= 4, "sizes that ask for the same layout share a packing"


def test_every_size_is_right_and_sizes_share_packings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(convolution, "MOST_SIZES", 5)
    for given, shape, channels in ((GIVEN, (24, 12, 3, 3), 12), (TRANSPOSED, (24, 16, 3, 4), 24)):
        weight = torch.randn(shape)
        run = of(weight, given=given)
        for n, rows, columns in ((2, 9, 8), (1, 31, 40), (3, 4, 4), (2, 17, 3), (8, 5, 7), (2, 64, 64), (2, 9, 8), (4, 1, 1)):
            images = torch.randn(n, channels, rows, columns)
            assert is_right(run, images, weight, given)
            assert is_right(run, images.contiguous(memory_format=LAST), weight, given)
        assert 0 < len(run.sites) < 7 and len(run._finds) <= 5


def test_eagers_own_call_is_taken_where_it_is_the_faster_one() -> None:
    weight = torch.randn(8, 8, 3, 3)
    several = torch.randn(4, 8, 30, 30)
    for images, packed in ((several[:1, :, :9, :9], False), (several, False), (several.to(memory_format=LAST), True)):
        run = of(weight)
        assert is_right(run, images, weight) and bool(run.sites) == packed


def test_a_wide_weight_of_small_images_in_planes_is_packed() -> None:
    weight, images = torch.randn(64, 64, 3, 3), torch.randn(2, 64, 5, 4)
    run = of(weight)
    assert is_right(run, images, weight) and sum(site.made for site in run.sites) == 1


def test_a_wide_weight_of_which_there_is_no_packing_meets_planes() -> None:
    weight, images = torch.randn(64, 64, 3, 3), torch.randn(2, 64, 5, 4).contiguous(memory_format=LAST)
    run = of(weight, limit=1)
    assert is_right(run, images, weight) and not any(site.made for site in run.sites)
    assert run(images, weight, None, *GIVEN).is_contiguous()


def test_no_images_and_other_threads() -> None:
    weight, run = torch.randn(64, 64, 3, 3), of(torch.randn(64, 64, 3, 3))
    assert run(torch.randn(0, 64, 5, 4), weight, None, *GIVEN).shape == (0, 64, 5, 4)
    before = torch.get_num_threads()
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            assert is_right(run, torch.randn(2, 64, 5, 4), weight)
    finally:
        torch.set_num_threads(before)
