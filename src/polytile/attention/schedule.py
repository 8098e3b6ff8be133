"""Attention schedules as data: who shares the keys of a tile of rows (schedule/answers.py), and whether it is the backward pass.

| share            | combine          | warps       | derivative | name        | CPU            | GPU                   |
| ---------------- | ---------------- | ----------- | ---------- | ----------- | -------------- | --------------------- |
| program          | program          | alike       |            | flash       | cpp/flash.py   | triton/flash.py       |
| program          | program          | specialised |            | specialised |                | triton/specialised.py |
| grid (cluster)   | launch (cluster) | alike       |            | split       | cpp/split.py   | triton/split.py       |
| program          | program          | alike       | yes        | backward    |                | triton/backward.py    |
| program          | program          | specialised | yes        | backward specialised |       | triton/specialised_backward.py |

On a CPU, the threads of a call share keys and may wait for each other. On a GPU, a second launch combines the programs' partial
results. The name appears in candidates' names and in stored configs (`variant`).
"""

from __future__ import annotations

from dataclasses import dataclass

from polytile.problem import Config


@dataclass(frozen=True)
class AttentionSchedule:
    """`shares_keys`: several programs, or all threads, each process part of the keys of a tile of rows. `specialised`: some
    warps of a program only load, the others only compute."""

    shares_keys: bool = False
    derivative: bool = False
    specialised: bool = False


BY_NAME: dict[str, AttentionSchedule] = {
    "flash": AttentionSchedule(),
    "specialised": AttentionSchedule(specialised=True),
    "split": AttentionSchedule(shares_keys=True),
    "backward": AttentionSchedule(derivative=True),
    "backward specialised": AttentionSchedule(derivative=True, specialised=True),
}


def schedule_of(config: Config) -> AttentionSchedule:
    """The schedule that a config names. Raises KeyError for an unknown name."""
    return BY_NAME[str(config["variant"])]
