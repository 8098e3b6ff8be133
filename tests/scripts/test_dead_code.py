"""The search for names of the package that nothing uses."""

from __future__ import annotations

from pathlib import Path

import pytest

dead_code = pytest.importorskip("scripts.dead_code", reason="needs vulture")

MODULE = """
def used(): ...
def shown(): ...
def tested(): ...
class Kept:
    def method(self): ...

__all__ = ["used", "shown", "tested",
           "Kept"]
"""


def test_what_only_tests_call_is_found_whatever_all_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "src" / "polytile"
    for folder in (package, tmp_path / "benchmarks", tmp_path / "scripts", tmp_path / "tests", tmp_path / "docs"):
        folder.mkdir(parents=True)
    (package / "module.py").write_text(MODULE)
    (tmp_path / "benchmarks" / "one.py").write_text("from polytile.module import Kept, tested, used\nused(Kept())\n")
    (tmp_path / "tests" / "test_module.py").write_text("from polytile.module import tested\ntested()\n")
    (tmp_path / "docs" / "page.md").write_text("```python\nmodule.shown()\n```\n")
    (tmp_path / "README.md").write_text("")
    (tmp_path / "pyproject.toml").write_text("[tool.vulture]\nignore_names = ['method']\n")
    monkeypatch.setattr(dead_code, "ROOT", tmp_path)
    monkeypatch.setattr(dead_code, "PACKAGE", package)
    assert dead_code.unused() == ["src/polytile/module.py:4: unused function 'tested'"]
