"""Reads config tables from JSON files, and checks them.

    {"family": "cuda", "inherits": "default", "tables": {"mm": {"fields": ["block_m", ...], "rows": [[32, ...], ...]}}}

A family inherits whole tables, and replaces them by its own tables of the same name. Fields that a table omits have the record's
defaults. Every row is checked when the file is read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from polytile.errors import ConfigTableError
from polytile.matmul.configs.records import KINDS, Record

FOLDER = Path(__file__).parent / "tables"

Tables = Mapping[str, tuple[Record, ...]]


def read(family: str, records: Mapping[str, type[Record]], folder: Path = FOLDER) -> Tables:
    """The tables of `family`, including inherited ones, with rows as the `records` of their kind.

    Raises
    ------
    ConfigTableError
        If a file is missing or malformed.
    """
    path = folder / f"{family}.json"
    document = _document(path)
    if document["family"] != family:
        raise ConfigTableError(f"{path} says that it is for {document['family']!r}; it must be for {family!r}.")
    inherited = read(document["inherits"], records, folder) if document["inherits"] else {}
    own = {name: table(name, content, records, str(path)) for name, content in document["tables"].items()}
    return {**inherited, **own}


def _document(path: Path) -> dict[str, Any]:
    try:
        document = json.loads(path.read_text())
    except OSError as error:
        raise ConfigTableError(f"the config tables {path} cannot be read: {error.strerror}.") from error
    except ValueError as error:
        raise ConfigTableError(f"the config tables {path} are not JSON: {error}.") from error
    wanted = {"family": str, "inherits": str, "tables": dict}
    if not isinstance(document, dict) or {k: type(v) for k, v in document.items()} != wanted:
        raise ConfigTableError(f"{path} must be an object of family (text), inherits (text) and tables (object).")
    return document


def table(name: str, content: Any, records: Mapping[str, type[Record]], where: str) -> tuple[Record, ...]:
    """The records of one table, {"fields": [...], "rows": [[...], ...]}.

    Raises
    ------
    ConfigTableError
        If it is malformed. The message names `where`, the table and the row.
    """
    if name not in KINDS:
        raise ConfigTableError(f"{where} has a table {name!r}; tables are {', '.join(KINDS)}.")
    if not isinstance(content, dict) or set(content) != {"fields", "rows"}:
        raise ConfigTableError(f"table {name!r} of {where} must be an object of fields and rows.")
    kind, names = records[KINDS[name]], content["fields"]
    known = {f.name: f for f in fields(kind)}
    needed = {f.name for f in known.values() if f.default is MISSING}
    if not set(names) <= set(known) or not needed <= set(names) or len(set(names)) != len(names):
        raise ConfigTableError(
            f"table {name!r} of {where} has the fields {', '.join(names)}; it may have {', '.join(known)}, each once, and "
            f"needs {', '.join(sorted(needed))}."
        )
    return tuple(_record(kind, names, row, f"row {k} of table {name!r} of {where}") for k, row in enumerate(content["rows"]))


def _record(kind: type[Record], names: Sequence[str], row: Any, where: str) -> Record:
    if not isinstance(row, list) or len(row) != len(names):
        raise ConfigTableError(f"{where} must be a list of {len(names)} values; it is {row!r}.")
    types = {f.name: str(f.type) for f in fields(kind)}
    for name, value in zip(names, row, strict=True):
        if not _fits(value, types[name]):
            raise ConfigTableError(f"{where}: {name} is {value!r}; it must be of type {types[name]}, numbers at least 0.")
    values: dict[str, Any] = {n: tuple(v) if isinstance(v, list) else v for n, v in zip(names, row, strict=True)}
    return kind(**values)


def _fits(value: Any, annotation: str) -> bool:
    """Whether a JSON value has the type with which the record's field is annotated."""
    if annotation.startswith("tuple"):
        return isinstance(value, list) and all(isinstance(item, str) for item in value)
    if value is None:
        return annotation.endswith("None")
    wanted = {"int": int, "bool": bool, "str": str}[annotation.removesuffix(" | None")]
    return type(value) is wanted and (not isinstance(value, int) or value >= 0)
