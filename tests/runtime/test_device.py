"""What machine this is: stable, complete, and aware of the number of threads."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from polytile import options
from polytile.runtime import cpu
from polytile.runtime.device import describe, fingerprint


def test_the_fingerprint_is_short_and_the_same_every_time() -> None:
    assert fingerprint() == fingerprint()
    assert fingerprint().startswith("cpu-") and len(fingerprint()) < 40


def test_the_number_of_threads_is_part_of_it() -> None:
    before, threads = fingerprint(), torch.get_num_threads()
    try:
        torch.set_num_threads(threads + 1)
        assert fingerprint() != before
        assert describe()["threads"] == threads + 1
    finally:
        torch.set_num_threads(threads)
    assert fingerprint() == before


def test_the_description_is_plain_data_that_names_the_libraries() -> None:
    facts = describe()
    assert json.loads(json.dumps(facts)) == facts
    assert facts["torch"] == torch.__version__
    assert {"model", "flags", "isa", "caches", "cores", "libc", "compiler"} <= set(facts)


def test_a_machine_without_compiler_has_a_fingerprint_too(home: Path) -> None:
    with options.override(cxx="no-such-compiler"):
        assert describe()["compiler"] == "none"
        assert fingerprint().startswith("cpu-unknown-")


CPUINFO = {
    "x86": ("model name\t: Xeon\ncpu family\t: 6\nmodel\t\t: 85\nflags\t\t: sse avx2 fma\n\nmodel name\t: other\n",
            "Xeon 6 85", ("avx2", "fma", "sse")),
    "arm": ("processor\t: 0\nFeatures\t: fp asimd\nCPU implementer\t: 0x41\nCPU part\t: 0xd0c\n",
            "0xd0c 0x41 0xd0c", ("asimd", "fp")),
    "nothing": ("", "unknown", ()),
}  # fmt: skip


@pytest.mark.parametrize("kind", CPUINFO)
def test_cpuinfo_of_several_makers_is_understood(kind: str) -> None:
    text, model, flags = CPUINFO[kind]
    found = cpu.parse(text, "machine")
    assert (found.model, found.flags) == (model, flags)


def test_another_set_of_flags_is_another_processor() -> None:
    one, other = (cpu.parse(f"model name: A\nflags: {flags}\n", "x86_64") for flags in ("sse avx2", "sse"))
    assert one.identity != other.identity
