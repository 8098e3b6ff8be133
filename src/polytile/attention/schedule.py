"""How an attention goes through its keys, as data: who shares the keys of a block of rows (schedule/answers.py), and whether the
derivative is computed.

| share            | combine          | derivative | name     | CPU            | GPU                |
| ---------------- | ---------------- | ---------- | -------- | -------------- | ------------------ |
| program          | program          |            | flash    | cpp/flash.py   | triton/flash.py    |
| grid (cluster)   | launch (cluster) |            | split    | cpp/split.py   | triton/split.py    |
| program          | program          | yes        | backward |                | triton/backward.py |

On a CPU the threads of a call share keys and may wait for each other; on a GPU a second launch combines what programs leave. The
name stands in candidates' names and in stored configs (`variant`).
"""

from __future__ import annotations

from dataclasses import dataclass

from polytile.problem import Config


@dataclass(frozen=True)
class AttentionSchedule:
    """`shares_keys`: several programs, or all threads, have a share each of the keys of a block of rows."""

    shares_keys: bool = False
    derivative: bool = False


BY_NAME: dict[str, AttentionSchedule] = {
    "flash": AttentionSchedule(),
    "split": AttentionSchedule(shares_keys=True),
    "backward": AttentionSchedule(derivative=True),
}


def schedule_of(config: Config) -> AttentionSchedule:
    """The schedule that a config names. Raises KeyError for a name that names none."""
    return BY_NAME[str(config["variant"])]
