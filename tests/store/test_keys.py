"""Everything that a measurement depends on is in its key: a change of any of it measures anew, and going back finds what
was there."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from polytile import options
from polytile.dispatch.spec import KernelSpec
from polytile.problem import Config
from polytile.runtime import cpu, device, regime, toolchain
from polytile.runtime.compile import Order
from polytile.runtime.cuda import driver
from polytile.store import identity
from polytile.tuning import environment
from tests.store.helpers import make

GPU = torch.device("cuda")
SWITCHES = {"cpu": environment.SWITCHES, "cuda": environment.GPU_SWITCHES}
PROCESSOR = cpu.Cpu("A processor 6 85", "x86_64", ("avx2", "fma"))


@pytest.fixture(autouse=True)
def nothing_remembered() -> Iterator[None]:
    """What is read of the machine once for each process is read again, before and after."""
    forget()
    yield
    forget()


def forget() -> None:
    for once in (device._fixed, device._fingerprint, environment._environment, environment._gpu_environment):
        once.cache_clear()
    toolchain.reset()


# The device.

DEVICE: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "model": lambda patch: patch.setattr(device, "cpu", lambda: dataclasses.replace(PROCESSOR, model="Another 6 86")),
    "machine": lambda patch: patch.setattr(device, "cpu", lambda: dataclasses.replace(PROCESSOR, machine="aarch64")),
    "flags": lambda patch: patch.setattr(device, "cpu", lambda: dataclasses.replace(PROCESSOR, flags=("avx2",))),
    "caches": lambda patch: patch.setattr(device, "cache_sizes", lambda: {"L1d": 1 << 15}),
    "max_mhz": lambda patch: patch.setattr(device, "max_clock", lambda: {"max_mhz": 3500.0}),
    "cores": lambda patch: patch.setattr(device, "usable_cores", lambda: 77),
    "threads": lambda patch: patch.setattr(torch, "get_num_threads", lambda: 77),
    "isa": lambda patch: patch.setattr(device, "_compiler", lambda: ("neon", "g++ 12")),
    "compiler": lambda patch: patch.setattr(device, "_compiler", lambda: ("avx2", "g++ 13")),
    "libc": lambda patch: patch.setattr(device, "_libc", lambda: "musl 1.2"),
    "torch": lambda patch: patch.setattr(torch, "__version__", "9.9.9"),
}
"""Fact → what makes it another one."""


@pytest.fixture
def processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "cpu", lambda: PROCESSOR)
    monkeypatch.setattr(device, "_compiler", lambda: ("avx2", "g++ 12"))


@pytest.mark.parametrize("fact", DEVICE)
def test_another_device_is_another_key_and_the_store_says_what_it_was(
    processor: None, monkeypatch: pytest.MonkeyPatch, fact: str
) -> None:
    before = device.fingerprint()
    known = dict(device.described(before))
    DEVICE[fact](monkeypatch)
    device._fixed.cache_clear()
    device._fingerprint.cache_clear()
    after = device.fingerprint()
    assert after != before
    changed = {name for name, value in device.described(after) if known.get(name) != value}
    assert changed == {fact}
    monkeypatch.undo()


def test_the_facts_of_a_device_are_complete(processor: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "max_clock", lambda: {"max_mhz": 3500.0})
    assert {*DEVICE, "kind"} == {name for name, _ in device.described(device.fingerprint())}


def test_the_highest_clock_is_read_where_the_system_tells_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cpuinfo_max_freq").write_text("3500000\n")
    monkeypatch.setattr(cpu, "SCALING", tmp_path)
    cpu.max_clock.cache_clear()
    assert cpu.max_clock() == {"max_mhz": 3500.0}
    monkeypatch.setattr(cpu, "SCALING", tmp_path / "none")
    cpu.max_clock.cache_clear()
    assert cpu.max_clock() == {}
    cpu.max_clock.cache_clear()


# The software and its settings.


@pytest.mark.parametrize("variable", environment.VARIABLES)
def test_a_setting_of_a_library_is_in_the_environment_where_it_is_made(
    monkeypatch: pytest.MonkeyPatch, variable: str
) -> None:
    monkeypatch.delenv(variable, raising=False)
    before = environment.environment()
    monkeypatch.setenv(variable, "7")
    assert set(environment.environment()) - set(before) == {(variable, "7")}
    monkeypatch.delenv(variable)
    assert environment.environment() == before


@pytest.mark.parametrize("variable", environment.GPU_VARIABLES)
def test_a_setting_of_cudas_libraries_is_in_the_environment_of_gpus(monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    monkeypatch.delenv(variable, raising=False)
    before = environment.environment(GPU), environment.environment()
    monkeypatch.setenv(variable, "7")
    assert set(environment.environment(GPU)) - set(before[0]) == {(variable, "7")}
    assert environment.environment() == before[1]


@pytest.mark.parametrize("fact", ["torch", "triton", "nvidia-cublas", "driver", "method"])
def test_an_upgrade_of_what_gpus_need_is_another_environment(monkeypatch: pytest.MonkeyPatch, fact: str) -> None:
    versions = {"triton": "3.6.0", "nvidia-cublas": "13.0"}

    def version(package: str) -> str:
        if package not in versions:
            raise importlib.metadata.PackageNotFoundError(package)
        return versions[package]

    monkeypatch.setattr(importlib.metadata, "version", version)
    monkeypatch.setattr(driver, "release", lambda: "570.86.15 (CUDA 12080)")
    before = dict(environment.environment(GPU))
    changes: dict[str, Callable[[], None]] = {
        "torch": lambda: monkeypatch.setattr(torch, "__version__", "9.9.9"),
        "driver": lambda: monkeypatch.setattr(driver, "release", lambda: "580.1 (CUDA 13000)"),
        "method": lambda: monkeypatch.setattr(environment, "GPU_METHOD", "99"),
    }
    changes.get(fact, lambda: versions.update({fact: "99"}))()
    environment._gpu_environment.cache_clear()
    after = dict(environment.environment(GPU))
    assert {name for name in after if after[name] != before.get(name)} == {fact}
    monkeypatch.undo()


def test_warm_and_cold_caches_are_two_environments() -> None:
    with options.override(gpu_cache="warm"):
        warm = environment.environment(GPU)
    with options.override(gpu_cache="cold"):
        assert set(environment.environment(GPU)) - set(warm) == {("caches", "cold")}


@pytest.mark.parametrize(
    "target, fact, value", [(target, *switch) for target, switches in SWITCHES.items() for switch in switches]
)
def test_what_the_program_tells_torch_is_in_the_environment(
    monkeypatch: pytest.MonkeyPatch, target: str, fact: str, value: object
) -> None:
    """The answers of torch.backends are replaced: some can only be switched where there is such a device."""
    other = "ieee" if isinstance(value, str) else not value
    before = environment.environment(torch.device(target))
    ask = environment.attrgetter
    monkeypatch.setattr(environment, "attrgetter", lambda name: (lambda backends: other) if name == fact else ask(name))
    assert set(environment.environment(torch.device(target))) - set(before) == {(fact, str(other))}


def test_precision_told_in_torchs_older_words_counts_too() -> None:
    before = environment.environment(GPU)
    torch.set_float32_matmul_precision("high")
    try:
        assert ("cuda.matmul.fp32_precision", "tf32") in environment.environment(GPU)
    finally:
        torch.set_float32_matmul_precision("highest")
        for backend in (torch.backends.cuda, torch.backends.mkldnn):
            backend.matmul.fp32_precision = "none"
    assert environment.environment(GPU) == before


def test_a_compiler_that_says_something_else_is_another_environment(tmp_path: Path) -> None:
    real = toolchain.find()
    before = dict(environment.environment())
    wrapper = tmp_path / "another-g++"
    wrapper.write_text(f'#!/bin/sh\n[ "$1" = --version ] && echo "another 99.1" || exec {real.path} "$@"\n')
    wrapper.chmod(wrapper.stat().st_mode | stat.S_IXUSR)
    with options.override(cxx=str(wrapper)):
        found = dict(environment.environment())
    assert found["compiler"] == f"{real.kind} another 99.1" != before["compiler"]


@pytest.mark.parametrize(
    "fact, change",
    [
        ("torch", lambda patch: patch.setattr(torch, "__version__", "9.9.9")),
        ("flags", lambda patch: patch.setattr(toolchain, "KERNEL_FLAGS", (*toolchain.KERNEL_FLAGS, "-O3"))),
        ("method", lambda patch: patch.setattr(environment, "METHOD", "99")),
    ],
)
def test_an_upgrade_is_another_environment(
    monkeypatch: pytest.MonkeyPatch, fact: str, change: Callable[[pytest.MonkeyPatch], None]
) -> None:
    before = dict(environment.environment())
    change(monkeypatch)
    environment._environment.cache_clear()
    after = dict(environment.environment())
    assert {name for name in after if after[name] != before.get(name)} == {fact}
    monkeypatch.undo()


# The problem and the candidate.

SPEC = KernelSpec("k", "loop", "k0", (), ("M",), (regime.BUCKET,), device="cpu-x")


def test_the_threads_that_a_kernel_may_use_are_part_of_the_problem() -> None:
    with options.override(threads=1):
        one = SPEC.problem((64,), ())
    with options.override(threads=2):
        two = SPEC.problem((64,), ())
    assert one != two and one.key != two.key


@pytest.mark.parametrize(
    "change",
    [{"candidate": "other"}, {"config": Config.of({"M": 64}, threads=2)}, {"config": Config.of({"M": 65}, threads=1)},
     {"source_hash": "def"}],
    ids=["name", "config", "hint", "source"],
)  # fmt: skip
def test_a_measurement_speaks_for_its_own_candidate_alone(change: dict[str, Any]) -> None:
    @dataclasses.dataclass(frozen=True)
    class Named:
        name: str
        config: Config
        source_hash: str

    def who(m: Any) -> Any:
        return identity(Named(m.candidate, m.config, m.source_hash))

    assert who(make()) != who(dataclasses.replace(make(), **change))


# What is compiled.

ORDER = Order("k", "int f();", "c++", ("-O2",), ("-lm",), (os.devnull,), "gcc; 12; avx512 macros; x86_64 A processor")


@pytest.mark.parametrize("field", ["source", "language", "flags", "libraries", "identity"])
def test_a_binary_is_named_by_all_that_it_depends_on(field: str) -> None:
    value = getattr(ORDER, field)
    other = dataclasses.replace(ORDER, **{field: (*value, "-g") if isinstance(value, tuple) else value + "x"})
    assert other.key != ORDER.key
    assert dataclasses.replace(ORDER, name="other", command=("elsewhere",)).key == ORDER.key


def test_the_identity_of_a_compiler_holds_its_version_its_macros_and_the_processor(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(toolchain, "cpu", lambda: PROCESSOR)
    found = toolchain.describe(("g++",), "g++ 12", ("-march=native",), "#define __GNUC__ 12\n#define __AVX2__ 1\n")
    others = [
        toolchain.describe(("g++",), "g++ 13", ("-march=native",), "#define __GNUC__ 12\n#define __AVX2__ 1\n"),
        toolchain.describe(("g++",), "g++ 12", ("-march=native",), "#define __GNUC__ 12\n"),
        toolchain.describe(("c",), "g++ 12", ("-march=native",), "#define __clang__ 1\n#define __AVX2__ 1\n"),
        toolchain.describe(("g++", "-O0"), "g++ 12", ("-march=native",), "#define __GNUC__ 12\n#define __AVX2__ 1\n"),
    ]
    behind = toolchain.describe(("ccache", "g++"), "g++ 12", ("-march=native",), "#define __GNUC__ 12\n#define __AVX2__ 1\n")
    assert behind.identity == found.identity
    identities = {one.identity for one in (found, *others)}
    monkeypatch.setattr(toolchain, "cpu", lambda: dataclasses.replace(PROCESSOR, model="Another"))
    assert len({*identities, found.identity}) == 6
