"""Kernels that threads compile, or whoever needs them first."""

from __future__ import annotations

import threading

import pytest

from polytile.autotuner.compiling import Work


def test_what_no_thread_is_to_begin_with_is_compiled_when_it_is_asked_for() -> None:
    compiled: list[str] = []
    work = Work(lambda: compiled.append("kernel"))
    work.withdraw()
    work.run()
    assert not compiled and not work.done()
    work.result()
    work.result()
    assert compiled == ["kernel"]


def test_what_a_thread_has_begun_with_is_waited_for() -> None:
    begun, may_end = threading.Event(), threading.Event()

    def compile() -> int:
        begun.set()
        may_end.wait()
        return 7

    work = Work(compile)
    thread = threading.Thread(target=work.run)
    thread.start()
    begun.wait()
    work.withdraw()
    with pytest.raises(TimeoutError):
        work.result(timeout=0)
    may_end.set()
    assert work.result() == 7
    thread.join()


def test_an_error_is_raised_to_all_who_ask() -> None:
    def compile() -> None:
        raise ValueError("no such block")

    work = Work(compile)
    work.run()
    for _ in range(2):
        with pytest.raises(ValueError, match="no such block"):
            work.result()
