"""Finding the compiler, saying what it is, and remembering it."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from polytile import options
from polytile.errors import CompilerMissing
from polytile.runtime import cpu, toolchain


def refuse(*arguments: Any, **keywords: Any) -> Any:
    raise AssertionError(f"a program was started: {arguments}")


def test_the_compiler_is_found_and_described() -> None:
    tools = toolchain.find()
    assert os.path.isabs(tools.path) and tools.kind in ("gcc", "clang")
    assert tools.lanes == {name: lanes for name, lanes, _ in toolchain.ISA_TABLE}.get(tools.isa, 1)
    assert set(tools.native) <= set(tools.flags) and "-ffast-math" not in tools.flags


def test_a_second_process_reads_the_record_and_starts_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    first = toolchain.find()
    toolchain.reset()
    monkeypatch.setattr(subprocess, "Popen", refuse)
    assert toolchain.find() == first


def test_another_processor_does_not_use_the_record(monkeypatch: pytest.MonkeyPatch) -> None:
    first = toolchain.find()
    toolchain.reset()
    monkeypatch.setattr(toolchain, "cpu", lambda: cpu.Cpu("another", "x86_64", ("sse",)))
    assert first.identity == f"{first.kind}; {first.version}; {first.isa} {first.macros}; {toolchain.cpu().identity}"
    monkeypatch.setattr(subprocess, "Popen", refuse)
    with pytest.raises(AssertionError, match="a program was started"):
        toolchain.find()


def test_a_replaced_compiler_is_examined_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wrapper = tmp_path / "mycxx"
    wrapper.write_text('#!/bin/sh\nexec g++ "$@"\n')
    wrapper.chmod(0o755)
    with options.override(cxx=str(wrapper)):
        assert toolchain.find().path == str(wrapper)
        wrapper.write_text('#!/bin/sh\n# a newer one\nexec g++ "$@"\n')
        toolchain.reset()
        monkeypatch.setattr(subprocess, "Popen", refuse)
        with pytest.raises(AssertionError, match="a program was started"):
            toolchain.find()


def test_a_damaged_record_is_made_again(home: Path) -> None:
    first = toolchain.find()
    for record in (home / "toolchain").iterdir():
        record.write_bytes(record.read_bytes()[:20])
    toolchain.reset()
    assert toolchain.find() == first


def test_the_option_wins_over_cxx_and_cxx_over_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("one", "two"):
        (tmp_path / name).write_text('#!/bin/sh\nexec g++ "$@"\n')
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("CXX", str(tmp_path / "two"))
    assert toolchain.find().path == str(tmp_path / "two")
    with options.override(cxx=str(tmp_path / "one")):
        assert toolchain.find().path == str(tmp_path / "one")


def test_a_stale_cxx_variable_is_reported_and_passed_over(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("CXX", "gone-g++")
    assert toolchain.find().kind in ("gcc", "clang")
    assert "gone-g++" in caplog.text


def test_no_compiler_at_all_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "")
    with pytest.raises(CompilerMissing, match=r"apt install g\+\+"):
        toolchain.find()


def test_where_none_is_installed_the_one_that_filled_the_cache_stands_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    first = toolchain.find()
    toolchain.reset()
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", "")
    absent = toolchain.find()
    assert absent.identity == first.identity and not absent.present
    with pytest.raises(CompilerMissing, match=r"apt install g\+\+"):
        toolchain.require()


def test_a_misspelt_compiler_is_an_error_and_not_passed_over() -> None:
    with options.override(cxx="g+++"), pytest.raises(CompilerMissing, match=r"option cxx is 'g\+\+\+'"):
        toolchain.find()


@pytest.mark.parametrize(("script", "message"), [("exit 1", "does not run"), ("echo hi; exit 0", "neither GCC nor")])
def test_something_that_is_no_compiler_is_refused(tmp_path: Path, script: str, message: str) -> None:
    program = tmp_path / "fake"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    with options.override(cxx=str(program)), pytest.raises(CompilerMissing, match=message):
        toolchain.find()


MACROS = {
    "avx512": ("AVX512F AVX512BW AVX512DQ AVX512VL AVX2 FMA AVX SSE2", 16),
    "avx2": ("AVX2 FMA AVX SSE2 AVX512F", 8),
    "sse": ("SSE SSE2", 4),
    "neon": ("ARM_NEON", 4),
    "scalar": ("", 1),
}


@pytest.mark.parametrize("isa", MACROS)
def test_the_instruction_set_follows_from_the_macros(isa: str) -> None:
    names, lanes = MACROS[isa]
    macros = "#define __GNUC__ 12\n" + "".join(f"#define __{name}__ 1\n" for name in names.split())
    tools = toolchain.describe(("/bin/c++",), "c++ 12", ("-march=native",), macros)
    assert (tools.isa, tools.lanes, tools.kind) == (isa, lanes, "gcc")


def test_clang_is_told_from_gcc() -> None:
    macros = "#define __GNUC__ 4\n#define __clang__ 1\n"
    assert toolchain.describe(("/bin/c++",), "clang version 17", (), macros).kind == "clang"
