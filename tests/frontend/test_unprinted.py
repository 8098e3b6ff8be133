"""AOTAutograd prints the graphs of a training step only where somebody reads them."""

from __future__ import annotations

import pytest
import torch
from torch._functorch._aot_autograd import graph_compile

from polytile.frontend import unprinted

JOINT_FORWARD_BACKWARD = 3


def _printed(monkeypatch: pytest.MonkeyPatch, read: bool) -> int:
    """How many graphs are printed while a training step is compiled: Dynamo's own too, since pytest listens to torch's trace."""
    counts = [0]
    plain = torch.fx.GraphModule.print_readable

    def print_readable(self: torch.fx.GraphModule, *args: object, **named: object) -> str:
        counts[0] += 1
        return str(plain(self, *args, **named))

    torch._dynamo.reset()
    x = torch.randn(5, 3, requires_grad=True)
    with monkeypatch.context() as patched:
        patched.setattr(torch.fx.GraphModule, "print_readable", print_readable)
        patched.setattr(unprinted, "_is_read", lambda: read)
        torch.compile(lambda x: (x * 2).relu().sum(), backend="polytile", dynamic=True)(x).backward()
    return counts[0]


def test_graphs_are_printed_for_readers_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    read, unread = _printed(monkeypatch, True), _printed(monkeypatch, False)
    assert read - unread == JOINT_FORWARD_BACKWARD


@pytest.mark.parametrize("log", unprinted.LOGS)
def test_torch_logs_are_readers(log: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unprinted.trace_log, "handlers", [])
    assert not unprinted._is_read()
    monkeypatch.setattr(getattr(graph_compile, log), "isEnabledFor", lambda level: True)
    assert unprinted._is_read()


def test_a_trace_is_a_reader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(unprinted.trace_log, "handlers", [object()])
    assert unprinted._is_read()
