"""A plugin of pytest, `-p tests.programs_in_c`: every program is C from its first call on, compiled there and then.

Most tests call a program a few times, so they see Python's wrapper alone without it. The summary counts the programs.
"""

from __future__ import annotations

import collections
from typing import Any

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.stash[PROGRAMS] = install()


def install() -> collections.Counter[str]:
    """Has every program compiled from C before its first call. Returns the counts of programs, which go on."""
    from polytile.wrapper import compiled, cpp

    programs = collections.Counter[str]()
    write, original = cpp.write, compiled._Swapped.__init__

    def init(self: Any, *given: Any) -> None:
        original(self, *given)
        self.make()
        programs["in Python, not compiled" if self.scope["serve"] is self.plain else "in C"] += 1

    def counted(*given: Any) -> str:
        try:
            return write(*given)
        except cpp.NoProgramInC as error:
            programs[f"in Python: {error}"] += 1
            raise

    compiled._Swapped.__init__ = init  # type: ignore[method-assign]
    cpp.write = counted
    return programs


PROGRAMS = pytest.StashKey[collections.Counter[str]]()


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    for what, count in config.stash[PROGRAMS].most_common():
        terminalreporter.write_line(f"{count} programs {what}")
