"""What the demo keeps of polytile's counters."""

from __future__ import annotations

import json

import torch

import polytile
from benchmarks.compilers import Account


def test_an_account_has_what_every_counter_gained() -> None:
    account = Account("polytile")
    torch.compile(lambda x: torch.sort(x * 2)[0], backend="polytile", dynamic=True)(torch.randn(5, 7))
    gained = json.loads(json.dumps(account.closed().as_json()))
    assert gained.keys() == set(polytile.counters)
    assert gained["graphs_compiled"] == 1 and gained["seconds"]["tracing"] > 0 and sum(gained["library_calls"].values()) == 1
    assert Account("inductor").as_json() == {}
