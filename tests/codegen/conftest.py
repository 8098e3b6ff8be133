"""Tests of a module that names several GENERATORS run once for each."""

from __future__ import annotations

import pytest

from tests.codegen import helpers


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
