"""Parts of texts: compiled once, linked into each shared object, and whole files only."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from polytile import counters
from polytile.matmul import cpp as gemm
from polytile.matmul import linear_tiles
from polytile.matmul.cpp import GemmConfig, GemmSpec
from polytile.runtime import toolchain
from polytile.runtime.compile import SourceRejected, compile_cpp, compile_log, compile_parts
from polytile.runtime.parts import marked, parts
from tests.runtime.helpers import forget, returned

SHARED = 'extern "C" __attribute__((visibility("hidden"))) long shared()'


def text(own: int, shared: int = 40, name: str = "forty") -> str:
    """A kernel `k` that returns the sum of its own number and one that a part gives."""
    part = marked(name, f"{SHARED} {{\n  return {shared};\n}}\n")
    return f'{part}{SHARED};\nextern "C" long k(void* const*, const long*, long) {{ return {own} + shared(); }}\n'


def result(source: str) -> int:
    return returned(compile_cpp("k", source).result().address("k"))


def objects(home: Path) -> list[Path]:
    return sorted((home / "kernels").glob("*.o"))


def test_a_part_is_compiled_once_for_all_texts_that_have_it(home: Path) -> None:
    promises = [compile_cpp("k", text(n)) for n in range(4)]
    assert [returned(each.result().address("k")) for each in promises] == [40, 41, 42, 43]
    assert [path.name.partition("-")[0] for path in objects(home)] == ["forty"]
    assert counters["compiler_runs"] == 5 and counters["kernels_generated"] == 4
    assert sorted(record.name for record in compile_log()) == ["forty", "k", "k", "k", "k"]
    assert list((home / "tmp").iterdir()) == []


def test_parts_are_compiled_ahead_of_texts(home: Path) -> None:
    """What is made before there is a kernel is what the kernel is linked with."""
    (ahead,) = compile_parts(text(0))
    assert not objects(home)
    assert [ahead.result().path] == objects(home) and counters["compiler_runs"] == 1
    assert result(text(2)) == 42 and counters["compiler_runs"] == 2 and len(objects(home)) == 1


def test_a_linear_layer_has_tiles_that_are_compiled_ahead() -> None:
    known = {part.text for each in linear_tiles.texts() for part in parts(each)}
    lanes = toolchain.find().lanes
    for layout, kept in (("k", False), ("k", True), ("any", True)):
        spec = GemmSpec(b_layout=layout, has_epilogue=True)
        for config in gemm.configs(spec, lanes, kept):
            if (config.form == "tile_prepacked") == kept:
                unit = gemm.generate(spec, config, "k", "", lanes)
                assert {part.text for part in parts(unit)} <= known, config


def test_a_text_is_one_translation_unit_too(tmp_path: Path) -> None:
    (tmp_path / "k.cpp").write_text(text(2))
    subprocess.run([toolchain.find().path, "-shared", "-fPIC", "-c", "k.cpp"], cwd=tmp_path, check=True)
    assert [(part.name, part.text.count("\n")) for part in parts(text(2))] == [("forty", 3)]


def test_another_part_is_another_kernel(home: Path) -> None:
    assert (result(text(1)), result(text(1, 50))) == (41, 51)
    assert len(objects(home)) == 2


def test_a_shared_object_needs_no_other_file(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compile_cpp("k", text(3)).result()
    for path in objects(home):
        path.unlink()
    forget()
    monkeypatch.setattr(subprocess, "Popen", lambda *_, **__: pytest.fail("a program was started"))
    assert result(text(3)) == 43


@pytest.mark.parametrize("later", [False, True], ids=["the same process", "a later process"])
@pytest.mark.parametrize("damage", ["removed", "truncated"])
def test_a_damaged_object_is_made_again(home: Path, damage: str, later: bool) -> None:
    compile_cpp("k", text(1)).result()
    (path,) = objects(home)
    if damage == "removed":
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:100])
    if later:
        forget()
    assert result(text(2)) == 42
    assert objects(home) == [path]


def test_a_part_that_the_compiler_rejects_fails_every_text_that_has_it() -> None:
    broken = marked("broken", "no such thing;\n")
    for own in (1, 2):
        with pytest.raises(SourceRejected, match="broken"):
            compile_cpp("k", f'{broken}extern "C" long k() {{ return {own}; }}\n').result()


def test_processes_that_compile_a_part_at_once_do_not_disturb_each_other(home: Path) -> None:
    program = "from tests.runtime.test_parts import *\nimport sys\nprint(result(text(int(sys.argv[1]))))"
    running = [
        subprocess.Popen([sys.executable, "-c", program, str(n)], stdout=subprocess.PIPE, text=True) for n in range(3)
    ]
    assert [int(process.communicate(timeout=300)[0]) for process in running] == [40, 41, 42]
    assert len(objects(home)) == 1


@pytest.mark.parametrize(
    "config", [GemmConfig("small", 8, 2), GemmConfig("tile_packed", 6, 4), GemmConfig("dot", 6, 4)], ids=str
)
def test_products_share_register_tiles_whatever_becomes_of_their_sums(config: GemmConfig) -> None:
    epilogue = "static inline void epilogue(void* const*, const long*, long, long, long, VACC, long) {}\n"
    plain = gemm.generate(GemmSpec(b_layout="k"), config, "k", None, 16)
    fused = gemm.generate(GemmSpec(b_layout="k", has_epilogue=True, batched=True), config, "k", epilogue, 16)
    (part,) = parts(plain)
    assert parts(fused) == [part] and f"{config.mr}x{config.nv}" in part.name
