"""What measuring tells of itself: to watchers, on terminals, in logs."""

from __future__ import annotations

import io
import logging
import math

import pytest
from rich.console import Console

import polytile
from polytile.report import progress as shown
from polytile.report.progress import Display, described
from polytile.tuning.progress import Step, tell, watching
from polytile.tuning.tune import tune
from tests.tuning.planted import Function, double, raises, task

STEP = Step("softmax", (("n0", 64), ("n1", 512)), 3, 1, "persistent t2", "looped t1", 5.73e-6, 8.4)
DONE = Step("softmax", (("n0", 64),), 3, 3, "", "persistent t2", 4.69e-6, finished=True)


def test_each_candidate_is_a_step_and_the_last_names_the_best() -> None:
    steps: list[Step] = []
    with watching(steps.append):
        tune(task(Function("right", double), Function("raises", raises), apart=frozenset(), kernel="double"))
    assert [step.doing for step in steps] == ["right", "raises", "timing", ""]
    assert [step.checked for step in steps] == [0, 1, 2, 2] and all(step.candidates == 2 for step in steps)
    last = steps[-1]
    assert last.finished and last.best == "right" and last.seconds > 0 and last.problem == "double n=1003"
    tell(STEP)
    assert len(steps) == 4, "nobody watches any more"


def test_a_log_has_a_line_for_each_problem(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "polytile.tuning"):
        tell(STEP)
        tell(DONE)
    assert [record.getMessage() for record in caplog.records] == ["softmax n0=64: persistent t2 4.69 µs, best of 3"]
    assert str(Step("k", (), 2, 2, "", finished=True)) == "k: none could be used of 2"


def test_without_a_terminal_there_are_lines_and_nothing_else() -> None:
    out = io.StringIO()
    display = Display(Console(file=out))
    display(STEP)
    display(DONE)
    assert out.getvalue() == "polytile: softmax n0=64: persistent t2 4.69 µs, best of 3\n"


def test_on_a_terminal_a_bar_says_what_how_many_best_so_far_and_time_left() -> None:
    out = io.StringIO()
    display = Display(Console(file=out, force_terminal=True, width=200))
    display(STEP)
    display.close()
    text = out.getvalue()
    assert "softmax n0=64 n1=512: persistent t2, best looped t1 5.73 µs, 8 s left" in text and "1/3" in text
    display(DONE)
    assert "best of 3" in out.getvalue()
    assert described(DONE) == "softmax n0=64: , best persistent t2 4.69 µs" and math.isinf(DONE.left)


def test_the_option_progress_shows_what_any_program_measures(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], empty_cache: object
) -> None:
    import torch

    from polytile.tuning import progress

    monkeypatch.setattr(shown, "_shown", None)
    monkeypatch.setattr(progress, "_watchers", [])
    torch._dynamo.reset()
    with torch.no_grad():
        polytile.compile(lambda x: torch.softmax(x, -1), options={"progress": "lines"})(torch.randn(30, 500))
    assert "polytile: " in capsys.readouterr().err
