"""Compilers that do something else, or at another moment, than the one that is installed."""

from __future__ import annotations

from pathlib import Path


def stand_in(program: Path, compiling: str) -> str:
    """Path of a compiler that is g++, save that `compiling`, commands of bash, run in its place where there is something to
    compile."""
    program.write_text(f'#!/bin/bash\nif [[ " $* " != *" -o "* ]]; then exec g++ "$@"; fi\n{compiling}\n')
    program.chmod(0o755)
    return str(program)


def in_company(program: Path, log: Path, company: int) -> str:
    """A compiler that goes to work once `company` of them have begun, and at the latest after a minute. It writes a line "+"
    to `log` when it begins and "-" when it ends."""
    log.write_text("")
    wait = f"for _ in {{1..6000}}; do (( $(grep -c + {log}) >= {company} )) && break; sleep 0.01; done"
    return stand_in(program, f'echo + >> {log}\n{wait}\ng++ "$@"; status=$?\necho - >> {log}; exit $status')


def most_at_once(log: Path) -> int:
    """How many compilers of `in_company` were at work at the same time, at most."""
    running = most = 0
    for line in log.read_text().split():
        running += 1 if line == "+" else -1
        most = max(most, running)
    return most
