"""Packages of models on a GPU: the same results as eager and as the live program, from Python and from C++ without it."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import polytile
from polytile.cli.package import write_runtime
from polytile.compiler.programs import compiled_programs
from polytile.errors import PackageError
from polytile.packages.load import Package
from tests.gpu.comparing import agree, widened

pytestmark = pytest.mark.gpu

EXAMPLE = Path(__file__).parents[2] / "examples" / "package" / "gpu.cpp"
ROWS = (1, 2, 3, 8, 9, 40, 64, 100, 300)


class Model(nn.Module):
    """Products with and without an epilogue; an embedding, whose indices are checked; a softmax; an input's view."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.embedding = nn.Linear(64, 512), nn.Linear(512, 128, bias=False), nn.Embedding(50, 512)

    def forward(self, x: Tensor, words: Tensor) -> dict[str, Tensor]:
        hidden = torch.softmax(torch.relu(self.first(x)) + self.embedding(words), -1)
        return {"out": self.second(hidden), "mean": hidden.mean(0), "rows": x[:, :3]}


def inputs(rows: int, dtype: torch.dtype = torch.bfloat16, device: str = "cuda") -> tuple[Tensor, Tensor]:
    made = torch.Generator().manual_seed(rows)
    x, words = torch.randn(rows, 64, generator=made), torch.randint(0, 50, (rows,), generator=made)
    return x.to(device, dtype), words.to(device)


def made(path: Path, dtype: torch.dtype = torch.bfloat16, **options: Any) -> tuple[nn.Module, Path]:
    torch.manual_seed(0)
    model = Model().eval().to("cuda", dtype)
    rows = Dim("rows", min=1, max=300)
    shapes = {"x": {0: rows}, "words": {0: rows}}
    return model, polytile.package(model, inputs(40, dtype), path, dynamic_shapes=shapes, **options)


@pytest.fixture(scope="module")
def packaged(tmp_path_factory: pytest.TempPathFactory) -> tuple[nn.Module, Path]:
    return made(tmp_path_factory.mktemp("packages") / "model.ptp")


@pytest.fixture
def package(packaged: tuple[nn.Module, Path]) -> Package:
    return polytile.load_package(packaged[1], verify=True)


def check(package: Package, model: nn.Module, x: Tensor, words: Tensor, given: Tensor | None = None) -> None:
    """Compares with eager; `given` has the values of `x`, and lies elsewhere."""
    with torch.no_grad():
        eager = model(x, words)
        exact = model.double()(*widened((x, words)))
        model.to(x.dtype)
    got = package(x if given is None else given, words)
    agree(dict(got), dict(eager), dict(exact))


def test_results_are_eagers_at_every_size(packaged: tuple[nn.Module, Path], package: Package) -> None:
    for rows in ROWS:
        check(package, packaged[0], *inputs(rows))
    manifest = package.manifest
    assert manifest["device"] == "cuda" and any(name.endswith(".cubin") for name in manifest["files"])


def test_inputs_in_other_strides_and_at_odd_addresses_are_taken(packaged: tuple[nn.Module, Path], package: Package) -> None:
    x, words = inputs(33)
    room = torch.zeros(33 * 64 + 1, dtype=x.dtype, device="cuda")
    room[1:] = x.flatten()
    for other in (x.t().contiguous().t(), room[1:].view(33, 64)):
        check(package, packaged[0], x, words, other)


def test_calls_run_on_the_current_stream_and_outlive_their_package(packaged: tuple[nn.Module, Path]) -> None:
    package, (x, words) = polytile.load_package(packaged[1]), inputs(64)
    want = package(x, words)["out"]
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        changed = x + 0
        got = package(changed, words)["out"]
        changed.zero_()
    stream.synchronize()
    del package
    assert torch.equal(got, want)


def test_an_index_out_of_range_is_told_by_a_later_call(package: Package) -> None:
    x, words = inputs(5)
    wrong = words.clone()
    wrong[3] = 50
    package(x, wrong)
    torch.cuda.synchronize()
    with pytest.raises(IndexError, match="out of"):
        package(x, words)
    package(x, words)


def test_inputs_elsewhere_are_refused(package: Package) -> None:
    x, words = inputs(5)
    with pytest.raises(PackageError, match=r"'x' .* on cuda; it is bfloat16\[5, 64\] on cpu"):
        package(x.cpu(), words)
    graph = torch.cuda.CUDAGraph()
    with pytest.raises(PackageError, match="recorded for a CUDA graph"), torch.cuda.graph(graph):
        package(x, words)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_it_runs_on_another_gpu(packaged: tuple[nn.Module, Path], package: Package) -> None:
    for rows in (1, 40, 300):
        got, want = package(*inputs(rows, device="cuda:1")), package(*inputs(rows))
        assert got["out"].device.index == 1 and torch.equal(got["out"].cpu(), want["out"].cpu())
    with pytest.raises(PackageError, match="'words' is not in the memory of GPU 1"):
        package(inputs(5, device="cuda:1")[0], inputs(5)[1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_measured_sizes_run_what_the_live_program_runs(tmp_path: Path, dtype: torch.dtype) -> None:
    sources = {"sources": "triton,cublaslt"}
    model, path = made(tmp_path / "model.ptp", dtype, hints=[8, 40, 300], options=sources)
    live = torch.compile(model, backend="polytile", dynamic=True, options=sources)
    package = polytile.load_package(path)
    with torch.no_grad():
        for rows in (40, 8, 300):
            got, want = package(*inputs(rows, dtype)), live(*inputs(rows, dtype))
            told = [str(decision) for kernel in compiled_programs()[-1].multikernels for decision in kernel.decisions]
            for name in want:
                assert torch.equal(got[name], want[name]), (rows, name, told, package.manifest["kernels"])


def test_attention_runs_at_every_length(tmp_path: Path) -> None:
    def parts(length: int) -> list[Tensor]:
        made = torch.Generator("cuda").manual_seed(length)
        return [torch.randn(1, 8, length, 64, generator=made, device="cuda", dtype=torch.bfloat16) for _ in range(3)]

    attention, length = torch.nn.functional.scaled_dot_product_attention, Dim("length", min=1, max=1 << 15)
    path = polytile.package(attention, parts(48), tmp_path / "attention.ptp", dynamic_shapes=(({2: length},) * 3,))
    package = polytile.load_package(path)
    for rows in (1, 5, 48, 300, 1000, 20000):
        q, k, v = parts(rows)
        torch.testing.assert_close(package(q, k, v), attention(q, k, v), rtol=2e-2, atol=2e-2)


def test_what_has_no_form_is_named(tmp_path: Path) -> None:
    x = torch.randn(6, 8, device="cuda")
    with pytest.raises(PackageError, match=r"aten\.sort.*library.*Leave that operator out"):
        polytile.package(lambda x: torch.sort(x)[0], (x,), tmp_path / "sort")
    with pytest.raises(PackageError, match="one device"):
        polytile.package(lambda x, y: (x + 1, y + 1), (x, x.cpu()), tmp_path / "both")
    assert not list(tmp_path.iterdir())


def test_a_cpp_program_without_python_gives_the_same(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 5)).eval().cuda()
    path = polytile.package(model, (torch.randn(40, 64, device="cuda"),), tmp_path / "model.ptp")
    write_runtime(tmp_path)
    subprocess.run(["gcc", "-O1", "-c", "polytile_package.c"], cwd=tmp_path, check=True)
    link = ["g++", "-O1", "-I.", str(EXAMPLE), "polytile_package.o", "-o", "main", "-ldl", "-lpthread"]
    subprocess.run(link, cwd=tmp_path, check=True)
    rows = (2, 3, 40, 333)
    environment = {"LD_LIBRARY_PATH": f"{folder_of_cublaslt()}:{os.environ.get('LD_LIBRARY_PATH', '')}"}
    told = subprocess.check_output(["./main", str(path), *map(str, rows)], cwd=tmp_path, text=True, env=environment)
    package = polytile.load_package(path)
    for line, count in zip(told.splitlines(), rows, strict=True):
        x = torch.sin(0.001 * torch.arange(count * 64, dtype=torch.float64)).float().reshape(count, 64).cuda()
        got = package(x)
        found = re.fullmatch(r"(\d+) rows: sum (\S+), largest (\S+)", line)
        assert found and int(found[1]) == count
        assert float(found[2]) == pytest.approx(float(got.double().sum()), abs=1e-3)
        assert float(found[3]) == pytest.approx(float(got.max()), abs=2e-4)


def folder_of_cublaslt() -> str:
    """Where the library lies that torch has loaded."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return next((str(Path(line.split()[-1]).parent) for line in lines if "libcublasLt.so" in line), "")
