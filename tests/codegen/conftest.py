"""Tests of a module that names several GENERATORS run once for each."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import pytest

from tests.codegen import helpers
from tests.codegen.prelude import builder


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    names = getattr(metafunc.module, "GENERATORS", ())
    if names:
        metafunc.parametrize("generator", names, indirect=True)


@pytest.fixture(autouse=True)
def generator(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """What makes the kernels of a Case: "cpp", or "triton", whose kernels are interpreted."""
    name = str(getattr(request, "param", "cpp"))
    if name == "triton":
        pytest.importorskip("triton", reason="Triton is not installed; make setup installs it where it can")
    monkeypatch.setattr(helpers, "GENERATOR", name)
    return name


@pytest.fixture(scope="module")
def build(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., ctypes.CDLL]:
    """build(source, march, lanes) -> a loaded translation unit on the C++ prelude."""
    return builder(tmp_path_factory.mktemp("prelude"))
