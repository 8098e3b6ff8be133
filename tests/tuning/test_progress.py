"""What measuring tells of itself: to watchers, on terminals, in logs."""

from __future__ import annotations

import contextlib
import io
import logging
import math
import os
import threading
import time
from collections.abc import Iterator

import pytest
import torch
from rich.console import Console

import polytile
from polytile import waits
from polytile.report import progress as shown
from polytile.report.progress import Bar, Lines, described
from polytile.tuning import progress
from polytile.tuning.progress import Step, report_step, watching
from polytile.tuning.tune import tune
from tests.tuning.planted import Function, double, raises, task

STEP = Step("softmax", (("n0", 64), ("n1", 512)), 3, 1, "persistent t2", "looped t1", 5.73e-6, 8.4)
DONE = Step("softmax", (("n0", 64),), 3, 3, "", "persistent t2", 4.69e-6, finished=True)


def test_each_candidate_is_a_step_and_the_last_names_the_best() -> None:
    steps: list[Step] = []
    with watching(steps.append):
        tune(task(Function("right", double), Function("raises", raises), isolated=frozenset(), kernel="double"))
    assert [step.doing for step in steps] == ["right", "raises", "timing", ""]
    assert [step.checked for step in steps] == [0, 1, 2, 2] and all(step.candidates == 2 for step in steps)
    last = steps[-1]
    assert last.finished and last.best == "right" and last.seconds > 0 and last.problem == "double n=1003"
    report_step(STEP)
    assert len(steps) == 4, "nobody watches any more"


def test_a_log_has_a_line_for_each_problem(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "polytile.tuning"):
        report_step(STEP)
        report_step(DONE)
    assert [record.getMessage() for record in caplog.records] == ["softmax n0=64: persistent t2 4.69 µs, best of 3"]
    assert str(Step("k", (), 2, 2, "", finished=True)) == "k: none could be used of 2"


def test_lines_are_of_problems_that_are_done() -> None:
    out = io.StringIO()
    lines = Lines(Console(file=out))
    lines(STEP)
    lines(DONE)
    assert out.getvalue() == "polytile: softmax n0=64: persistent t2 4.69 µs, best of 3\n"


def test_a_bar_says_what_how_many_best_so_far_and_time_left() -> None:
    out = io.StringIO()
    with waiting("compiling", "choosing") as wait:
        bar = Bar(wait, Console(file=out, force_terminal=True, width=200))
        assert bar.doing() == "polytile: choosing"
        report_step(STEP)
        bar.close()
        report_step(DONE)
    text = out.getvalue()
    assert "softmax n0=64 n1=512: persistent t2, best looped t1 5.73 µs, 8 s left" in text and "1/3" in text
    assert "best of 3" not in text, "it is closed"
    assert described(DONE) == "softmax n0=64: , best persistent t2 4.69 µs" and math.isinf(DONE.left)


@contextlib.contextmanager
def waiting(*doing: str) -> Iterator[waits.Wait]:
    wait = waits.Wait(doing[0], lambda wait: pytest.fail("too early"))
    wait.doing += doing[1:]
    yield wait
    wait.end()


class Terminal:
    """A pseudo-terminal that stands for stderr from now on; waits are shown at once."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._reader, writer = os.openpty()
        self.stderr = os.fdopen(writer, "w")
        os.set_blocking(self._reader, False)
        self._text = b""
        monkeypatch.setattr("sys.stderr", self.stderr)  # in the test itself: pytest sets it anew between a fixture and the test
        monkeypatch.setattr(waits, "SECONDS", 0.05)
        monkeypatch.setenv("TERM", "xterm")
        monkeypatch.delenv("POLYTILE_PROGRESS", raising=False)

    def text(self) -> str:
        """What was written so far."""
        self.stderr.flush()
        with contextlib.suppress(BlockingIOError):
            while read := os.read(self._reader, 1 << 16):
                self._text += read
        return self._text.decode()


def seen(terminal: Terminal, words: str, seconds: float = 10.0) -> bool:
    """Whether the words come to stand on the terminal."""
    end = time.monotonic() + seconds
    while words not in terminal.text() and time.monotonic() < end:
        time.sleep(0.01)
    return words in terminal.text()


def test_what_takes_long_is_on_the_terminal_and_gone_in_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal(monkeypatch)
    with waits.during("packaging model.ptp"), waits.during("compiling"):
        assert seen(terminal, "polytile: packaging model.ptp, compiling")
    shown = terminal.text()
    assert shown.endswith("\x1b[2K") or shown.rstrip("\r\n").endswith("\x1b[2K"), "the line is erased"
    time.sleep(0.1)
    assert terminal.text() == shown


def test_what_is_quick_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal(monkeypatch)
    monkeypatch.setattr(waits, "SECONDS", 30.0)
    with waits.during("compiling"):
        time.sleep(0.1)
    time.sleep(0.1)
    assert terminal.text() == ""


@pytest.mark.parametrize("why", ["a log", "the option", "a dumb terminal", "a thread of polytile's own"])
def test_nothing_is_shown(why: str, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal(monkeypatch)
    out: io.StringIO | None = None
    if why == "a log":
        out = io.StringIO()
        monkeypatch.setattr("sys.stderr", out)
    elif why == "the option":
        monkeypatch.setenv("POLYTILE_PROGRESS", "off")
    elif why == "a dumb terminal":
        monkeypatch.setenv("TERM", "dumb")

    def work() -> None:
        with waits.during("compiling"):
            time.sleep(0.3)

    if why.startswith("a thread"):
        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        thread.join()
    else:
        work()
    assert terminal.text() == "" and (out is None or out.getvalue() == "")


def test_of_two_threads_that_wait_one_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal(monkeypatch)
    def other() -> None:
        with waits.during("reading"):
            time.sleep(0.2)

    with waits.during("compiling"):
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
        assert seen(terminal, "polytile: compiling")
    assert "reading" not in terminal.text()


def test_a_call_that_waits_for_kernels_says_so_on_a_terminal(monkeypatch: pytest.MonkeyPatch, empty_cache: object) -> None:
    terminal = Terminal(monkeypatch)
    torch._dynamo.reset()
    with torch.no_grad(), polytile.options.override(stall="tune"):
        polytile.compile(lambda x: torch.softmax(x * 3, -1))(torch.randn(30, 500))
    assert "polytile: " in terminal.text()


def test_with_progress_lines_there_is_a_line_for_each_problem(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], empty_cache: object
) -> None:
    monkeypatch.setattr(shown, "_shown", None)
    monkeypatch.setattr(progress, "_watchers", [])
    torch._dynamo.reset()
    with torch.no_grad():
        polytile.compile(lambda x: torch.softmax(x, -1), options={"progress": "lines"})(torch.randn(30, 500))
    assert "polytile: " in capsys.readouterr().err
