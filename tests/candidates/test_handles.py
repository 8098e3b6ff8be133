"""Names by which different processes mean the same function."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from polytile.candidates.handles import importable_name


def kernel() -> None: ...


def test_a_script_and_a_command_that_imports_it_mean_the_same_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    """So a plan that `polytile tune kernels.py:kernel` writes is followed when kernels.py is run."""
    main = ModuleType("__main__")
    main.__file__ = "/home/me/kernels.py"
    monkeypatch.setitem(sys.modules, "__main__", main)
    assert importable_name(kernel) == f"{__name__}.kernel"
    monkeypatch.setattr(kernel, "__module__", "__main__")
    assert importable_name(kernel) == "kernels.kernel"
