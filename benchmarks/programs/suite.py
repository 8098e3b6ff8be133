"""All programs, by name."""

from __future__ import annotations

from benchmarks.programs import chains, networks, operators, rarer
from benchmarks.programs.program import Program


def _named() -> dict[str, Program]:
    found: dict[str, Program] = {}
    for program in (*operators.programs(), *rarer.programs(), *chains.programs(), *networks.programs()):
        if program.name in found:
            raise ValueError(f"two programs have the name {program.name!r}.")
        found[program.name] = program
    return found


PROGRAMS = _named()

__all__ = ["PROGRAMS"]
