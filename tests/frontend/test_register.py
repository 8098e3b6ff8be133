"""`import polytile` is cheap, and the backend is found by name whichever way polytile came to be there."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"

COMPILES = """
import torch
run = torch.compile(lambda x: x + 1, backend="polytile", dynamic=True)
assert run(torch.ones(5)).tolist() == [2.0] * 5
import polytile
assert polytile.counters["graphs_compiled"] == 1
"""


def python(code: str, *paths: Path) -> str:
    """What a fresh process prints; it must end well."""
    path = os.pathsep.join(map(str, paths))
    environment = {**os.environ, "PYTHONPATH": path, "POLYTILE_TUNE": "off"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_polytile_imports_neither_torch_nor_the_compiler() -> None:
    code = "import sys, polytile; print(*[m for m in ('torch', 'sympy', 'polytile.compiler.programs') if m in sys.modules])"
    assert python(code, SOURCE) == ""


def test_importing_polytile_after_torch_does_not_import_the_tracer() -> None:
    code = "import torch, sys; b = set(sys.modules); import polytile; print(*[m for m in set(sys.modules) - b if 'dynamo' in m])"
    assert python(code, SOURCE) == ""


def test_options_can_be_set_without_torch() -> None:
    code = "import sys, polytile; print(polytile.options.get('tune'), 'torch' in sys.modules)"
    assert python(code, SOURCE) == "off False"


def test_from_a_source_tree_importing_polytile_first_is_enough() -> None:
    python("import polytile\n" + COMPILES, SOURCE)


def test_from_a_source_tree_polytile_may_come_after_the_tracer() -> None:
    python("import torch._dynamo\nimport polytile\n" + COMPILES, SOURCE)


def test_an_entry_point_makes_importing_it_unnecessary(tmp_path: Path) -> None:
    made = tmp_path / "polytile-0.dist-info"
    made.mkdir()
    (made / "METADATA").write_text("Metadata-Version: 2.1\nName: polytile\nVersion: 0\n")
    (made / "entry_points.txt").write_text("[torch_dynamo_backends]\npolytile = polytile.compiler.backend:polytile\n")
    python(COMPILES, tmp_path, SOURCE)
    python("import polytile\n" + COMPILES, tmp_path, SOURCE)


def test_the_entry_point_is_the_one_that_is_declared() -> None:
    declared = (ROOT / "pyproject.toml").read_text()
    assert 'torch_dynamo_backends]\npolytile = "polytile.compiler.backend:polytile"' in declared


def test_the_import_hook_goes_when_it_has_done_its_work() -> None:
    code = """
import sys, polytile
from polytile.compiler import register
hooks = lambda: [f for f in sys.meta_path if type(f).__name__ == "_WhenImported"]
register.install()
assert len(hooks()) == 1
import torch._dynamo.backends.registry as registry
assert not hooks() and registry.__loader__.get_source(registry.__name__)
register.install()
assert registry.lookup_backend("polytile") is registry._COMPILER_FNS["polytile"]
assert "polytile" in torch._dynamo.list_backends()
print("polytile.compiler.backend" in sys.modules)
""".replace("import sys, polytile", "import sys, polytile, torch")
    assert python(code, SOURCE) == "False"
