"""Measurements of products whose times follow a law that predictions miss: few blocks take longer than is said."""

from __future__ import annotations

import random
from collections.abc import Iterator

from polytile.problem import Config, Measurement, Outcome, Problem
from polytile.store.reading import Record
from polytile.store.records import TERM

MACHINE = {"kind": "cuda", "name": "synthetic", "capability": "90", "sms": "132", "clock": "1.98e9"}
BLOCKS = (32, 64, 128, 256)


def records(count: int, seed: int = 0, penalty: float = 0.6, device: str = "cuda-synthetic") -> list[Record]:
    """Of `count` problems, a candidate for each block. Those with fewer than 64 blocks take `penalty` of their time more than
    predicted."""
    found = []
    for number, measurement in enumerate(_measurements(count, seed, penalty, device)):
        found.append(Record(f"{seed}-{number}", float(number), measurement))
    return found


def _measurements(count: int, seed: int, penalty: float, device: str) -> Iterator[Measurement]:
    draw = random.Random(seed)
    for _ in range(count):
        m, n, k = (1 << draw.randrange(5, 12) for _ in range(3))
        m += draw.randrange(16)
        problem = Problem("mm", "synthetic", (("batch", 1), ("M", m), ("N", n), ("K", k)), ("bfloat16",) * 3, (), device)
        for block in BLOCKS:
            blocks = m * n / block**2
            predicted = (m * n * k / 1e12 + 1e-6) * (1 + 8 / block)
            seconds = predicted * (1 + (penalty if blocks < 64 else 0.0))
            terms = {
                "loop_s": predicted / 2, "crowded": float(blocks < 64),
                "work.M": float(m), "work.N": float(n), "work.K": float(k),
                "work.itemsize": 2.0,
            }  # fmt: skip
            yield Measurement(
                problem, f"tile {block}", Config.of(variant="tile", m=block), f"source {block}", Outcome.OK, (seconds,) * 3,
                origin="triton", predicted=predicted, environment=(("torch", "any"),),
                state=tuple(sorted((TERM + name, value) for name, value in terms.items())),
                machine=tuple(sorted(MACHINE.items())),
            )  # fmt: skip


__all__ = ["BLOCKS", "MACHINE", "records"]
