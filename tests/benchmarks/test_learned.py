"""benchmarks.learned keeps what it has found, table by table."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import learned, record


def test_each_table_is_kept_as_soon_as_it_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    kept = tmp_path / "learned.json"
    seen: list[list[str]] = []

    def held_out(chosen: list[Any]) -> dict[str, Any]:
        seen.append(list(json.loads(kept.read_text())["results"]["products"]) if kept.exists() else [])
        return {"problems": len(chosen)}

    monkeypatch.setattr(learned, "TABLES", dict.fromkeys(("products, small", "products, large", "loops"), list))
    monkeypatch.setattr(learned, "_held_out", held_out)
    monkeypatch.setattr(learned, "bars", lambda results: None)
    monkeypatch.setattr(learned, "show", lambda shown: None)
    monkeypatch.setattr(record, "add", functools.partial(record.add, directory=tmp_path))
    learned.main(["products", "--table", "loops", "--json"])
    learned.main(["products", "--table", "products", "--json"])
    assert seen == [[], ["loops"], ["loops", "products, small"]]
    assert list(json.loads(kept.read_text())["results"]["products"]) == ["loops", "products, small", "products, large"]
