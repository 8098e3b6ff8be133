"""Every test gets a cache directory of its own and a runtime that remembers nothing of the tests before it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from polytile.runtime import native
from tests.runtime.helpers import forget


@pytest.fixture(scope="session", autouse=True)
def launcher_module(cache_of_this_run: Path) -> object:
    """The C launcher, built once for the whole run; every machine that runs these tests has a compiler."""
    module = native.module()
    assert module is not None
    return module


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The cache directory of this test."""
    monkeypatch.setenv("POLYTILE_CACHE_DIR", str(tmp_path / "cache"))
    forget()
    yield tmp_path / "cache"
    forget()
