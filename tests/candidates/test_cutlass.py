"""CUTLASS's products as candidates: their table, their text, and compilers that are missing or refuse. Where CUTLASS's headers
and an nvcc or NVRTC are installed, every family is compiled for sm_90a."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from polytile import options
from polytile.candidates import cutlass, sources
from polytile.candidates.cutlass import CutlassCandidate, product_candidates
from polytile.cli import doctor
from polytile.codegen.cutlass import worker
from polytile.dispatch.gpu_specs import template_spec
from polytile.dispatch.multikernel import MultiKernel
from polytile.errors import CandidateRejected, CompilerMissing
from polytile.matmul.cutlass import configs, text
from polytile.matmul.gemm_kernel import GemmKernel
from polytile.runtime.cuda import cubins, device
from polytile.runtime.cuda import cutlass as tools
from polytile.runtime.target import Target
from polytile.schedule.canonical import TensorArg
from polytile.schedule.facts import Facts
from tests.codegen.triton_gemm import grouped_product, product
from tests.runtime.cuda.conftest import Stub
from tests.runtime.cuda.conftest import stub as stub

CPU, H100 = torch.device("cpu"), device.named("H100")
BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
INT8, INT32, E4M3, E5M2 = torch.int8, torch.int32, torch.float8_e4m3fn, torch.float8_e5m2
STRIDES = frozenset(f"{stride}_stride_{axis}" for stride, axes in (("a", "bmk"), ("b", "bkn"), ("c", "bm")) for axis in axes)
ALIGNED = Facts(STRIDES, frozenset("ABC"))
SQUARE = {"batch": 1, "M": 4096, "N": 4096, "K": 4096}
VERSION = "#define CUTLASS_MAJOR {}\n#define CUTLASS_MINOR {}\n#define CUTLASS_PATCH 0\n"


def headers(folder: Path, major: int = 4, minor: int = 2) -> Path:
    """A folder that looks like one of CUTLASS's headers."""
    (folder / "cutlass").mkdir(parents=True)
    (folder / "cutlass/version.h").write_text(VERSION.format(major, minor))
    return folder


@pytest.fixture
def refusing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, empty_cache: Path) -> Iterator[Path]:
    """An nvcc that refuses everything, and writes down each time it is asked."""
    asked, cuda = tmp_path / "asked", tmp_path / "cuda"
    (cuda / "include/cccl/cuda/std").mkdir(parents=True)
    (cuda / "include/cuda_fp16.h").touch()
    (cuda / "include/cccl/cuda/std/utility").touch()
    monkeypatch.setenv("CUDA_HOME", str(cuda))
    says = f'#!/bin/bash\n[ "$1" = --version ] && echo "release 13.0, V13.0.88" && exit 0\necho . >> {asked}\n'
    says += "\n".join(f'echo "kernel.cu({n}): note {n}" >&2' for n in range(40))
    says += '\necho "kernel.cu(41): error: no such atom" >&2\nexit 2'
    nvcc = tmp_path / "nvcc"
    nvcc.write_text(says)
    nvcc.chmod(0o755)
    with options.override(cutlass=str(headers(tmp_path / "include")), nvcc=str(nvcc)):
        tools._found.cache_clear()
        yield asked
    tools._found.cache_clear()


def scaled(rows: int, columns: int, along: int = 128) -> GemmKernel:
    """A product of 8-bit floats with a scale for each block of so many rows of A, or columns of B, by `along` elements of k."""
    kernel = product(E4M3, "k", "k", out=BF16)
    a, b, c = kernel.tensors
    by = (TensorArg(name, F32, "in") for name in ("SA", "SB"))
    return replace(kernel, tensors=(a, b, *by, c), scales=((rows, along), (along, columns)))


def found(kernel: GemmKernel) -> tuple[CutlassCandidate, ...]:
    """The candidates on an H100."""
    return product_candidates(kernel, "product", CPU)


def test_what_a_compiler_refuses_is_told_kept_and_not_tried_again(refusing: Path) -> None:
    for _ in range(2):
        candidate = found(product(BF16, "k", "k"))[0].specialise(ALIGNED)
        with pytest.raises(cubins.KernelRejected, match="no such atom") as caught:
            candidate.handle()
        assert candidate.failed() and "note 3" not in str(caught.value)
        assert "CollectiveMma" in caught.value.source.read_text()
        cubins.reset()  # as another process
    assert refusing.read_text() == ".\n"


def test_each_size_has_the_configs_that_are_predicted_to_be_fastest(refusing: Path) -> None:
    candidates = found(product(BF16, "k", "n"))
    assert len({candidate.name for candidate in candidates}) == len(candidates) > 12
    for m, n, k in ((1, 64, 4096), (300, 4096, 4096), (4096, 4096, 4096), (8192, 8192, 64)):
        sizes = {"batch": 1, "M": m, "N": n, "K": k}
        with options.override(cutlass_configs=3):
            few = [candidate for candidate in candidates if candidate.valid(sizes)]
        taking_part = [candidate for candidate in candidates if candidate.valid(sizes)]
        best = sorted(taking_part, key=lambda candidate: candidate.cost(sizes))
        assert len(taking_part) <= 8 and set(few) == set(best[:3])


def test_operands_that_the_copy_engine_cannot_take_are_left_to_others(refusing: Path) -> None:
    candidate = found(product(BF16, "k", "k"))[0]
    strides = frozenset({"a_stride_m", "b_stride_n"})
    for facts in (Facts(), Facts(strides, frozenset("A")), Facts(strides - {"b_stride_n"}, frozenset("AB"))):
        form = candidate.specialise(facts)
        form.prepare()
        assert form.failed() and not form.valid(SQUARE) and not refusing.exists()
        with pytest.raises(CandidateRejected, match="[AB] does not begin at a multiple of 16 bytes, or its rows are not"):
            form.entry()
    able = candidate.specialise(Facts(strides, frozenset("AB")))
    assert able.valid(SQUARE) and not able.failed()
    batched = found(product(BF16, "k", "k", batched=True))[0]
    assert batched.specialise(Facts(strides, frozenset("AB"))).failed(), "items may begin anywhere"
    assert not batched.specialise(ALIGNED).failed()


@pytest.mark.parametrize(
    "kernel", [product(BF16, "k", "n"), product(BF16, "k", "n", batched=True), product(INT8, "k", "k", out=INT32)]
)
def test_blocks_are_split_where_whole_ones_leave_multiprocessors_idle(kernel: GemmKernel, refusing: Path) -> None:
    def splits(batch: int, m: int, n: int, k: int) -> dict[str, CutlassCandidate]:
        sizes = {"batch": batch, "M": m, "N": n, "K": k}
        with options.override(cutlass_configs=99):
            return {c.name.split()[2].rpartition("x")[0]: c for c in found(kernel) if c.valid(sizes) and c.config.get("split")}

    few = splits(1, 512, 512, 16384)
    assert "128x128" in few and "128x128" in splits(1, 64, 64, 65536)
    assert "128x128" not in splits(1, 4096, 8448, 4096), "no multiprocessor is idle in the last round"
    assert "128x128" not in splits(1, 512, 512, 256), "there are few steps"
    assert "128x128" in splits(1, 1536, 1536, 16384), "12 of 144 blocks are left to 132 programs"
    few = list(few.values())
    product_launch, parts = few[0].specialise(ALIGNED).kernel.launches
    (sums,) = few[0].specialise(ALIGNED).kernel.scratch
    block = int(few[0].config["m"]) * int(few[0].config["n"])
    assert sums.size == H100.sms * block and sums.dtype == (F32 if kernel.in_dtype == BF16 else INT32)
    assert product_launch.grid[0] == H100.sms and not parts.descriptors and product_launch.overlaps and parts.overlaps
    assert [a.name for a in parts.arguments][:2] == ["parts", "M"] and "parts" in [a.name for a in product_launch.arguments]


SCALES = (1, 128), (1, 1), (128, 1)
"""Rows of A, and columns of B, that share a scale: those that `torch._scaled_mm` takes."""


@pytest.mark.parametrize(("rows", "columns"), SCALES)
def test_scales_of_blocks_leave_room_for_so_many_sums(rows: int, columns: int, refusing: Path) -> None:
    names = {candidate.name for candidate in found(scaled(rows, columns))}
    assert names >= {f"cutlass {own}" for own in ("cooperative 128x128x128 s7 c1", "pingpong 64x128x128 s8 c2")}
    assert names >= {"cutlass split 128x128x128 s7 c1", "cutlass split 128x64x128 s8 c1"}
    assert ("cutlass cooperative 128x256x128 s4 c2" in names) == (columns == 128)
    too_large = "cooperative 256x128x128 s4 c2", "pingpong 64x256x128 s5 c1", "split 128x256x128 s4 c1"
    assert not names & {f"cutlass {own}" for own in too_large}


def test_a_size_whose_rows_the_copy_engine_cannot_take_has_no_candidate(refusing: Path) -> None:
    """Rows of 1000 elements begin at multiples of 16 bytes, but others of the same regime do not."""
    kernel = product(BF16, "k", "n")
    made = MultiKernel(template_spec(kernel, "product", (), CPU), found(kernel))
    for n, takes in ((1008, True), (1000, False), (1001, False)):
        ints = 1, 3, n, 512, 3 * 512, 512, 1, 512 * n, n, 1, 3 * n, n, 1
        assert bool(made.request(made.planned_key(ints), ints, None).candidates) == takes


@pytest.mark.parametrize(
    ("kernel", "most_sums"),
    [
        *((product(BF16, a, b), 128) for a in "km" for b in "kn"),
        (product(INT8, "k", "k", out=INT32), 128),
        (product(E4M3, "k", "k", out=F32), 96),
    ],
)
def test_a_launch_says_what_the_kernel_takes(kernel: GemmKernel, most_sums: int, refusing: Path) -> None:
    (a, b), wide = kernel.layouts, configs.STEP_BYTES // kernel.in_dtype.itemsize
    for candidate in found(kernel):
        config = candidate.config
        launch, *_ = candidate.specialise(ALIGNED).kernel.launches
        rows = int(config["n"]) // int(config["cluster"])
        blocks = [(int(config["m"]), wide) if a == "k" else (wide, wide), (rows, wide) if b == "k" else (wide, wide)]
        assert [each.block for each in launch.descriptors] == blocks and all(rows <= 256 for rows, _ in blocks)
        assert dict(launch.own)["shared"] <= H100.shared_per_block and launch.cluster == config["cluster"]
        groups = 1 if config["pingpong"] else 2
        assert int(config["m"]) * int(config["n"]) / (128 * groups) <= most_sums


@pytest.mark.parametrize(
    ("kernel", "takes"),
    [
        (product(BF16, "m", "n"), True),
        (product(F16, "k", "k", out=F32), True),
        (product(F32, "k", "k"), False),  # unless rounded to TF32
        (product(BF16, "any", "k"), False),
        (product(BF16, "k", "k", c="m"), False),
        (product(BF16, "k", "k", batched=True), True),
        (grouped_product("m", BF16), False),
        (scaled(1, 128), True),
        (scaled(128, 1), True),
        (scaled(1, 1, along=64), False),  # a step along k has two scales
        (product(INT8, "k", "k", out=INT32), True),
        (product(INT8, "k", "n", out=INT32), False),  # tensor cores read bytes along k alone
        (product(E4M3, "k", "k", out=F32), True),
        (product(E5M2, "k", "k", out=BF16), True),
        (product(E4M3, "m", "k", out=F32), False),
        (product(BF16, "k", "k", stored=(BF16, torch.int8)), True),
        (product(BF16, "k", "n", stored=(BF16, torch.int8)), False),  # integers are converted along k
        (product(BF16, "k", "k", stored=(torch.int8, BF16)), False),
    ],
)
def test_which_products_there_are(kernel: GemmKernel, takes: bool) -> None:
    assert text.able(kernel) == takes


def test_missing_old_and_wrong_headers_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def told(**given: str) -> str:
        tools._found.cache_clear()
        with options.override(**{"cutlass": "", "nvcc": "", **given}), pytest.raises(CompilerMissing) as caught:
            tools.find()
        return str(caught.value)

    monkeypatch.setattr(tools, "PACKAGE", "no-such-package")
    assert "pip install 'polytile[cutlass]'" in told()
    assert f"names {tmp_path}, but there is no cutlass/version.h in it" in told(cutlass=str(tmp_path))
    assert "are of CUTLASS 3.4.0; CUTLASS 3.5 or newer" in told(cutlass=str(headers(tmp_path / "old", 3, 4)))
    new = str(headers(tmp_path / "new"))
    assert "nvcc, which does not run" in told(cutlass=new, nvcc=str(tmp_path / "nvcc"))
    monkeypatch.setattr(tools, "_roots", lambda home: iter(()))
    assert "NVRTC was not found" in told(cutlass=new)
    with options.override(cutlass=str(tmp_path / "none")):
        finding = doctor.cutlass()
    assert finding.verdict == "fair" and "none" in finding.found


@pytest.mark.parametrize(("version", "loads"), [(12080, False), (13000, True), (13020, True), (14000, True)])
def test_a_driver_that_is_older_than_the_compiler_has_no_candidates(
    version: int, loads: bool, refusing: Path, stub: Stub, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The compiler is of CUDA 13.0: drivers of CUDA 12 do not load what it makes."""
    stub.version = version
    interpreted = Target.of(CPU)
    monkeypatch.setattr(Target, "of", lambda device: interpreted)
    source = next(source for source in sources.registered() if source.name == "cutlass")
    asked = sources.ProductRequest(product(BF16, "k", "k"), "product", torch.device("cuda", 0), native=False)
    with caplog.at_level("INFO", "polytile.candidates"):
        assert bool(source.products(asked)) == loads
    told = "the driver is" in caplog.text and "does not load what nvcc 13.0.88 makes; update the driver" in caplog.text
    assert told != loads and ("update the driver" in doctor.cutlass().advice) != loads
    assert not refusing.exists(), "nothing is compiled"


def test_folders_of_headers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def place(name: str, *files: str) -> Path:
        for file in files:
            path = tmp_path / name / "include" / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        return tmp_path / name

    fp16, new, old = "cuda_fp16.h", "cccl/cuda/std/utility", "cuda/std/utility"
    alone, library, both, before = place("a", fp16), place("b", new), place("c", fp16, new), place("d", fp16, old)
    for roots, wanted in {
        (alone, both): (both / "include", both / "include/cccl"),  # of one place, if that has both
        (alone, library): (
            alone / "include",
            library / "include",
            library / "include/cccl",
        ),  # cccl/cuda/std/... and cuda/std/...
        (before,): (before / "include",),
    }.items():
        monkeypatch.setattr(tools, "_roots", lambda home, roots=roots: iter(roots))
        assert tools._cuda("", tmp_path / "no/lib/libnvrtc.so") == wanted


def installed() -> str:
    """Why CUTLASS's kernels cannot be compiled here; "" if they can."""
    given = {} if shutil.which("nvcc") is None else {"nvcc": str(shutil.which("nvcc"))}
    try:
        with options.override(**given):
            tools.find()
    except CompilerMissing as error:
        return str(error)
    return ""


FAMILIES = {
    "cutlass cooperative 128x256x64 s4 c2": product(BF16, "k", "n"),
    "cutlass pingpong 64x128x64 s8 c1": product(F16, "m", "k"),
}
EVERY_FAMILY = {
    "cutlass cooperative 256x128x64 s4 c1": product(BF16, "m", "n"),
    "cutlass pingpong 64x256x64 s5 c2": product(BF16, "k", "k"),
    "cutlass pingpong 128x128x64 s7 c2": product(F16, "k", "n", out=F32),
    "cutlass pingpong 64x32x64 s8 c1": product(BF16, "k", "k"),
    "cutlass cooperative 128x256x128 s4 c2": product(INT8, "k", "k", out=INT32),
    "cutlass cooperative 128x192x128 s5 c2": product(E4M3, "k", "k", out=F32),
    "cutlass pingpong 64x192x128 s7 c1": product(E5M2, "k", "k", out=BF16),
    "cutlass split 256x128x64 s4 c1": product(BF16, "k", "n", batched=True),
    "cutlass split 128x192x128 s5 c1": product(E4M3, "k", "k", out=F32),
    "cutlass split 128x256x128 s4 c1": product(INT8, "k", "k", out=INT32),
}


@pytest.mark.slow
@pytest.mark.skipif(bool(installed()), reason=installed())
@pytest.mark.parametrize("name", [*FAMILIES, *EVERY_FAMILY])
def test_every_family_compiles_for_sm_90a_and_spills_nothing(name: str) -> None:
    kernel = {**FAMILIES, **EVERY_FAMILY}[name]
    with options.override(nvcc=shutil.which("nvcc") or ""):
        candidate = next(c for c in found(kernel) if c.name == name).specialise(ALIGNED)
        assert candidate.handle() is not None
    taken = candidate.resources
    assert taken.registers == 168 and taken.spilled_bytes == 0, "of 65536 registers, for 384 threads"
    assert cutlass.ARCH == "sm_90a"


SCALED = [
    (rows, columns, configs.label(config))
    for rows, columns in SCALES
    for config in configs.configs(E4M3, True, H100, ((rows, 128), (128, columns)))
]


@pytest.mark.slow
@pytest.mark.skipif(bool(installed()), reason=installed())
@pytest.mark.parametrize(("rows", "columns", "name"), SCALED)
def test_every_config_with_scales_compiles_for_sm_90a_and_spills_nothing(rows: int, columns: int, name: str) -> None:
    """Compiled in this process: others are given up where a busy machine leaves them no time."""
    with options.override(nvcc=shutil.which("nvcc") or ""):
        candidate = next(c for c in found(scaled(rows, columns)) if c.name == name)
        launch = candidate.specialise(ALIGNED).kernel.launches[0]
        made = worker.run(dict(candidate.work.order(launch, "product").job))
    assert (made["registers"], made["spills"]) == (168, 0)
