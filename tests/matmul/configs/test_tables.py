"""The tables are what was published, every row of them; a file that is not what it should be is refused with the place."""

from __future__ import annotations

import json
import os
from dataclasses import astuple
from pathlib import Path
from typing import Any

import pytest

from polytile.errors import ConfigTableError
from polytile.matmul.configs import heuristic
from polytile.matmul.configs.files import read
from polytile.matmul.configs.records import PLAIN, ROCM, Gemm, RocmGemm
from polytile.problem import digest

PUBLISHED = Path(os.environ.get("POLYTILE_CONFIG_TABLES", "/work/shared/spec/config_tables.json"))
DIGESTS = {
    "cpu": "cf6f122fa6ac06a2",
    "cuda": "ec77dcd9ab9cdd60",
    "rocm": "4fb675b114d770d8",
    "xpu": "ad9dbeef95a150bf",
}
"""Digest of every family's rows: a changed table is changed here too, on purpose."""


def text(family: str) -> str:
    tables = heuristic(family).tables
    return "\n".join(f"{name} {astuple(row)}" for name in sorted(tables) for row in tables[name])


@pytest.mark.parametrize("family", DIGESTS)
def test_no_row_changes_unnoticed(family: str) -> None:
    assert digest(text(family)) == DIGESTS[family]


@pytest.fixture(scope="module")
def published() -> dict[str, Any]:
    if not PUBLISHED.exists():
        pytest.skip("the published tables are not on this machine; their digest is tested")
    return json.loads(PUBLISHED.read_text())  # type: ignore[no-any-return]


def test_every_default_row_is_the_published_one(published: dict[str, Any]) -> None:
    for name, rows in published["default"].items():
        ours = heuristic("cuda").table(name.removesuffix("_configs"))
        assert [list(astuple(row))[: len(rows[0])] for row in ours] == rows, name
    assert all(row.group_m == 8 for row in heuristic("cuda").table("mm") if isinstance(row, Gemm))


def test_every_rocm_row_is_the_published_one(published: dict[str, Any]) -> None:
    ours = heuristic("rocm").table("mm")
    assert len(ours) == len(published["rocm"]["mm_configs"])
    for row, wanted in zip(ours, published["rocm"]["mm_configs"], strict=True):
        assert isinstance(row, RocmGemm) and row.num_stages is None
        assert {name: getattr(row, name) for name in wanted if name != "num_stages"} == {
            name: value for name, value in wanted.items() if name != "num_stages"
        }
        assert (row.matrix_instr_nonkdim, row.kpack, row.waves_per_eu) == (16, 2, wanted.get("waves_per_eu", 0))
    decode = heuristic("rocm").table("flex_decode_autotune")
    assert [list(astuple(r))[:3] for r in decode] == published["rocm"]["flex_decode_autotune_configs"]


def test_every_attention_default_is_the_published_one(published: dict[str, Any]) -> None:
    cuda = {astuple(r)[:3]: list(astuple(r)[3:]) for r in heuristic("cuda").table("flex_forward_default")}
    rocm = {astuple(r)[1:3]: list(astuple(r)[3:]) for r in heuristic("rocm").table("flex_forward_default")}
    for capability, place in ((90, "cuda capability >= 9.0"), (80, "cuda capability >= 8.0")):
        for key, values in published["flex_forward_default"][place].items():
            dtype, head = key.split(",")
            assert cuda.pop((capability, dtype, int(head))) == values
    assert not cuda
    assert {f"{dtype},{head}": values for (dtype, head), values in rocm.items()} == published["flex_forward_default"]["rocm"]


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ("[]", "must be an object of family"),
        ("{", "not JSON"),
        ('{"family": "a", "inherits": "", "tables": {}}', "must be for 'own'"),
        ('{"family": "own", "inherits": "", "tables": {"nn": {}}}', "has a table 'nn'; tables are mm"),
        ('{"family": "own", "inherits": "", "tables": {"mm": {"rows": []}}}', "must be an object of fields and rows"),
        ('{"family": "own", "inherits": "", "tables": {"mm": {"fields": ["block_m"], "rows": []}}}', "and\\s+needs block_k"),
        ('{"family": "own", "inherits": "", "tables": {"mm": {"fields": [%s], "rows": [[1, 2]]}}}', "list of 5 values"),
        ('{"family": "own", "inherits": "", "tables": {"mm": {"fields": [%s], "rows": [[1, 2, 3, 4, "x"]]}}}', "is 'x'"),
        ('{"family": "own", "inherits": "", "tables": {"mm": {"fields": [%s], "rows": [[1, -2, 3, 4, 5]]}}}', "block_n is -2"),
        ('{"family": "own", "inherits": "gone", "tables": {}}', "gone.json cannot be read"),
    ],
)
def test_a_wrong_file_is_refused_and_says_where(tmp_path: Path, document: str, message: str) -> None:
    fields = '"block_m", "block_n", "block_k", "num_stages", "num_warps"'
    (tmp_path / "own.json").write_text(document.replace("%s", fields))
    with pytest.raises(ConfigTableError, match=message):
        read("own", PLAIN, tmp_path)


def test_a_family_inherits_whole_tables(tmp_path: Path) -> None:
    default = {"fields": ["block_n", "num_stages", "num_warps"], "rows": [[32, 1, 2], [64, 1, 2]]}
    (tmp_path / "base.json").write_text(
        json.dumps({"family": "base", "inherits": "", "tables": {"flex_decode_autotune": default}})
    )
    own = {"fields": ["num_warps", "block_n", "num_stages", "kpack"], "rows": [[4, 16, 1, 1]]}
    (tmp_path / "own.json").write_text(
        json.dumps({"family": "own", "inherits": "base", "tables": {"flex_decode_autotune": own}})
    )
    (row,) = read("own", ROCM, tmp_path)["flex_decode_autotune"]
    assert astuple(row) == (16, 1, 4, 0, 0, 1)
    assert len(read("base", ROCM, tmp_path)["flex_decode_autotune"]) == 2
