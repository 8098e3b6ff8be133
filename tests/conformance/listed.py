"""The entries that are known not to be right, each with its reason: listed.json maps patterns of names to reasons.

A pattern is an entry's name with `*` for any dtype or part ("linalg.lu.*"). Entries on other devices have patterns of
their own under "cuda: ...", those of one version of torch under "torch 2.11: ...". An entry that is right although it is
listed is an error, as a stale list hides the next fault.
"""

from __future__ import annotations

import functools
import json
import re
from pathlib import Path

import torch

NEVER_CAPTURED = "Dynamo captured no graph"
"""How a report begins what it says of an entry that is equal to eager because eager ran it."""

FILE = Path(__file__).with_name("listed.json")


@functools.cache
def _patterns(device: str) -> tuple[tuple[re.Pattern[str], str], ...]:
    found = []
    version = "torch " + ".".join(torch.__version__.split(".")[:2])
    for pattern, reason in json.loads(FILE.read_text(encoding="utf-8")).items():
        kind, _, name = pattern.rpartition(": ")
        if kind in ("", device, version):
            expression = ".*".join(map(re.escape, name.split("*")))
            found.append((re.compile(expression), reason))
    return tuple(found)


def reason_for(entry: str, device: str) -> str:
    """Why `entry` is known not to be right on `device`; "" where it is not known."""
    kind = device.partition(":")[0]
    return next((reason for pattern, reason in _patterns(kind) if pattern.fullmatch(entry)), "")
