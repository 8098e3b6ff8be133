"""Fixtures of the tests of passes."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from polytile import options


@pytest.fixture
def on_gpu() -> Iterator[None]:
    """CPU tensors stand for a GPU's."""
    with options.override(interpret=True, verify_ir=True):
        yield
