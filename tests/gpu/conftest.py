"""Each test compiles for itself."""

from __future__ import annotations

import pytest

import polytile


@pytest.fixture(autouse=True)
def nothing_compiled() -> None:
    polytile.reset()
