"""Triton's interpreter with a NumPy that it was not written for."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest


@pytest.fixture(autouse=True)
def loop_bounds(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A loop's bound is an array of one element there, of which NumPy 2.4 makes no index any more."""
    interpreter = pytest.importorskip("triton.runtime.interpreter")
    plain = interpreter._patch_lang_tensor

    class Scope:
        def __init__(self, scope: Any) -> None:
            self.scope = scope

        def set_attr(self, obj: Any, name: str, value: Any) -> None:
            self.scope.set_attr(obj, name, (lambda self: int(self.handle.data.item())) if name == "__index__" else value)

    monkeypatch.setattr(interpreter, "_patch_lang_tensor", lambda tensor, scope: plain(tensor, Scope(scope)))
    yield
