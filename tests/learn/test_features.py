"""What the features mean: a change of them, or of the terms that models were trained on, wants another features.VERSION."""

from __future__ import annotations

import pytest

from polytile.learn.features import architecture, device_numbers, features, values
from polytile.learn.offer import Offer
from polytile.problem import Config, Problem

PROBLEM = Problem("mm", "k", (("M", 8),), ("float32",))


def offer(name: str, predicted: float, **terms: float) -> Offer:
    return Offer(name, Config.of(variant=name, m=64), "triton", predicted, lambda: terms)


def test_times_are_shares_and_what_the_problem_says_is_shared() -> None:
    offers = [offer("tile", 2e-6, loop_s=1e-6, places=3, **{"work.M": 8.0}), offer("rows", 4e-6, memory_s=1e-6)]
    first, second = features(PROBLEM, {"kind": "cuda", "sms": "132"}, offers)
    assert first == {
        "best": 1.0, "behind": 0.0, "device.sms": 132.0, "work.M": 8.0, "loop_s": 0.5, "places": 3.0, "config.m": 64.0,
        "variant=tile": 1.0, "origin=triton": 1.0,
    }  # fmt: skip
    assert second["behind"] == pytest.approx(0.6931, abs=1e-4) and second["work.M"] == 8.0 and second["memory_s"] == 0.25
    assert values(second, ["places", "variant=tile", "variant=rows", "memory_s"]) == [-1.0, 0.0, 1.0, 0.25]


def test_devices_are_told_by_their_numbers() -> None:
    gpu = {"kind": "cuda", "capability": "90", "sms": "132", "memory_clock": "2e9", "memory_bus_bits": "5120", "arch": ""}
    assert architecture(gpu) == "cuda sm90" and architecture({**gpu, "arch": "gfx942"}) == "cuda gfx942"
    assert device_numbers(gpu) == {"device.sms": 132.0, "device.memory": 1.024e13}
    cpu = {"kind": "cpu", "isa": "avx512", "cores": "2", "threads": "2", "caches": '{"L2": 1048576}'}
    assert architecture(cpu) == "cpu avx512" and architecture({}) == ""
    assert device_numbers(cpu) == {"device.cores": 2.0, "device.threads": 2.0, "device.L2": 1048576.0}
