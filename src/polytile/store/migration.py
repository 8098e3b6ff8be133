"""Creates a store's tables, and brings those of an older polytile up to date.

Version 5 gave candidates, numbers and sizes other names (words.py). What was measured stays as it is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable

from polytile.store import schema, words
from polytile.store.database import Connection
from polytile.store.records import compact, config_of, pairs, problem_digest, problem_of

RENAMED = 5
"""The version from which on everything has its present name."""

PROBLEMS = """
SELECT digest, relatives, family, kernel, sizes, dtypes, layouts, device FROM problems
WHERE CAST(sizes AS TEXT) LIKE '%"kept"%'
"""
MOVE = "UPDATE measurements SET problem = :new WHERE problem = :old"
REMOVE_PROBLEM = "DELETE FROM problems WHERE digest = :old"
CANDIDATES = "SELECT DISTINCT candidate, CAST(config AS TEXT), origin FROM measurements"
RENAME_CANDIDATE = """
UPDATE measurements SET candidate = :candidate, config = :config, origin = :origin
WHERE candidate = :old_candidate AND CAST(config AS TEXT) = :old_config AND origin = :old_origin
"""
STATES = "SELECT DISTINCT CAST(state AS TEXT) FROM measurements WHERE CAST(state AS TEXT) LIKE '%\"algorithm_told\"%'"
RENAME_STATE = "UPDATE measurements SET state = :new WHERE CAST(state AS TEXT) = :old"


def _rename_all(connection: Connection) -> None:
    """Gives everything in a store its present name. Unreadable rows stay as they are; `polytile store check` reports them."""
    for rename, rows in ((_rename_problem, PROBLEMS), (_rename_candidate, CANDIDATES), (_rename_state, STATES)):
        for row in connection.execute(rows).fetchall():
            with contextlib.suppress(ValueError, TypeError):
                rename(connection, *row)


def _rename_problem(connection: Connection, old: str, relatives: str, *columns: str) -> None:
    problem = words.problem(problem_of(*columns))
    new = problem_digest(problem)
    if new != old:
        names = "family", "kernel", "sizes", "dtypes", "layouts", "device"
        row = dict(zip(names, columns, strict=True))
        values = {"digest": new, "relatives": relatives, **row, "sizes": compact(problem.sizes)}
        connection.execute(schema.ADD_PROBLEM, values)
        connection.execute(MOVE, {"new": new, "old": old})
        connection.execute(REMOVE_PROBLEM, {"old": old})


def _rename_candidate(connection: Connection, *old: str) -> None:
    name, numbers, origin = old
    new = words.candidate(name), words.config(config_of(numbers), name).text, words.ORIGINS.get(origin, origin)
    if new != old:
        names = "candidate", "config", "origin"
        before = {f"old_{column}": value for column, value in zip(names, old, strict=True)}
        connection.execute(RENAME_CANDIDATE, {**before, **dict(zip(names, new, strict=True))})


def _rename_state(connection: Connection, old: str) -> None:
    state = compact([(words.STATE.get(name, name), value) for name, value in pairs(old)])
    connection.execute(RENAME_STATE, {"new": state, "old": old})


def bring_up_to_date(connection: Connection, version: int, database: str) -> None:
    """Makes the tables of this version in "sqlite" or "postgresql" from those of `version`, 0 where there are none."""
    if not version:
        _execute(connection, schema.creation(database))
        return
    _execute(connection, schema.migration(version, database))
    if version < RENAMED <= schema.VERSION:
        _execute(connection, schema.LIFT[database])
        _rename_all(connection)
        _execute(connection, schema.KEEP[database])


def _execute(connection: Connection, statements: Iterable[str]) -> None:
    for statement in statements:
        connection.execute(statement)
