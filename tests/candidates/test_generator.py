"""What a change of the generators means for measurements: those of other code do not count."""

from __future__ import annotations

from pathlib import Path

import pytest

from polytile.candidates import generator
from polytile.candidates.generator import FOLDERS, code_of

SOURCE = '''"""What it is for."""  # a remark

WIDTH = 4
"""Elements of a vector."""


def text(name: str) -> str:
    """One line."""
    # the reason
    return f"{name}  # not a comment"  # one


TEMPLATE = """
# stays
    """
'''


def test_code_is_what_is_left_without_comments_docstrings_and_empty_lines() -> None:
    assert code_of(SOURCE).splitlines() == [
        "WIDTH = 4", "def text(name: str) -> str:", '    return f"{name}  # not a comment"', 'TEMPLATE = """',
        "# stays", '    """',
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        ("# the reason", "# another reason", True),
        ("One line.", "Two\n    lines.", True),
        ("Elements of a vector.", "Elements.", True),
        ("\n\n\n", "\n", True),
        ("WIDTH = 4", "WIDTH = 8", False),
        ("not a comment", "no comment", False),
        ("# stays", "# goes", False),
    ],
)
def test_editing_prose_is_no_other_generator_and_editing_code_is(
    old: str, new: str, same: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, empty_cache: Path
) -> None:
    def version(text: str) -> str:
        for folder in FOLDERS:
            (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / "codegen" / "triton" / "one.py").write_text(text)
        monkeypatch.setattr(generator, "__file__", str(tmp_path / "candidates" / "generator.py"))
        return generator.generator_digest.__wrapped__()

    before = version(SOURCE)
    assert old in SOURCE and (version(SOURCE.replace(old, new)) == before) is same
    assert version(SOURCE) == before, "and is remembered"


def test_the_folders_have_the_generators() -> None:
    package = Path(generator.__file__).parents[1]
    for module in ("codegen/triton/generate.py", "matmul/triton/schedules.py", "schedule/nest.py", "codegen/writer.py"):
        assert (package / module).is_file() and str(Path(module).parent) in FOLDERS
