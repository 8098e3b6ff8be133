"""Packages: what is written, what loads it, and calls of it, from Python and C++, beside eager."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
import threading
import warnings
import zipfile
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.export import Dim

import polytile
from polytile.cli.package import write_runtime
from polytile.errors import PackageError
from polytile.packages.load import Package
from polytile.runtime import toolchain
from tests.cli.helpers import run

EXAMPLE = Path(__file__).parents[2] / "examples" / "package" / "main.cpp"


class Model(nn.Module):
    """A product by a weight that is packed, with an epilogue; an embedding, whose indices are checked; a softmax; a view."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.embedding = nn.Linear(64, 512), nn.Embedding(50, 512)
        self.register_buffer("scale", torch.rand(512, 3).t())

    def forward(self, x: Tensor, words: Tensor) -> dict[str, Tensor]:
        hidden = torch.relu(self.first(x))
        probabilities = torch.softmax(hidden * self.scale[1] + self.embedding(words), -1)
        return {"probabilities": probabilities, "mean": hidden.mean(0), "rows": x[:, :3]}


def inputs(rows: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    made = torch.Generator().manual_seed(seed)
    return torch.randn(rows, 64, generator=made), torch.randint(0, 50, (rows,), generator=made)


@pytest.fixture(scope="module")
def model() -> Model:
    torch.manual_seed(0)
    return Model().eval()


@pytest.fixture(scope="module")
def path(model: Model, tmp_path_factory: pytest.TempPathFactory) -> Path:
    rows = Dim("rows", min=1, max=300)
    target = tmp_path_factory.mktemp("packages") / "model.ptp"
    shapes = {"x": {0: rows}, "words": {0: rows}}
    return polytile.package(model, inputs(40), target, dynamic_shapes=shapes, options={"threads": 1})


@pytest.fixture(scope="module")
def package(path: Path) -> Package:
    return polytile.load_package(path, verify=True)


def check(package: Package, model: Model, rows: int) -> None:
    x, words = inputs(rows, rows)
    with torch.no_grad():
        want = model.double()(x.double(), words)
        model.float()
    got = package(x, words=words) if rows % 2 else package(x, words)
    assert list(got) == list(want)
    for name in want:
        torch.testing.assert_close(got[name].double(), want[name], rtol=1e-4, atol=1e-5)


def test_results_are_eagers_at_every_size(package: Package, model: Model) -> None:
    for rows in (1, 2, 3, 7, 8, 9, 16, 31, 64, 100, 128, 255, 300):
        check(package, model, rows)


def test_inputs_in_other_strides_are_taken(package: Package, model: Model) -> None:
    x, words = inputs(33)
    wide = torch.zeros(33, 2, dtype=words.dtype)
    wide[:, 1] = words
    got = package(x.t().contiguous().t(), wide[:, 1])
    torch.testing.assert_close(got, package(x, words), rtol=0, atol=0)


def test_inputs_that_torch_only_marks_as_negated_are_taken(package: Package) -> None:
    x, words = inputs(9)
    negated = torch.complex(torch.zeros_like(x), -x).conj().imag
    assert negated.is_neg() and torch.equal(negated, x)
    torch.testing.assert_close(package(negated, words), package(x, words), rtol=0, atol=0)


def test_results_outlive_the_package_and_share_nothing_with_inputs(path: Path) -> None:
    package, (x, words) = polytile.load_package(path), inputs(20)
    got = package(x, words)
    kept = got["rows"].clone()
    del package
    x.zero_()
    assert torch.equal(got["rows"], kept) and kept.abs().sum() > 0 and torch.isfinite(got["probabilities"]).all()


def test_many_threads_call_one_package(package: Package) -> None:
    given = [inputs(rows, rows) for rows in range(1, 61)]
    want = [package(*each)["mean"] for each in given]
    wrong: list[int] = []

    def work(first: int) -> None:
        for place in range(first, len(given), 4):
            if not torch.equal(package(*given[place])["mean"], want[place]):
                wrong.append(place)

    threads = [threading.Thread(target=work, args=(first,)) for first in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda x, words: (x.double(), words), r"'x' .* has to be float32\[\w+, 64\] on cpu; it is float64\[5, 64\]"),
        (lambda x, words: (x[0], words), r"'x' .* it is float32\[64\]"),
        (lambda x, words: (x[:, :63], words), "'x' has size 63 in dimension 1; .* it has to be 64"),
        (lambda x, words: (x, words[:3]), "'words' has size 3 in dimension 0; .* it has to be 5"),
        (lambda x, words: (x.repeat(100, 1), words.repeat(100)), "'x' in dimension 0 has to be 1 or more, and 300"),
        (lambda x, words: (x,), "is called as its model was"),
        (lambda x, words: (x, 3), "'words' .* dense tensor; it is a int"),
    ],
)
def test_inputs_that_do_not_fit_are_refused_by_name(package: Package, change, sentence: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(PackageError, match=sentence):
        package(*change(*inputs(5)))


def test_an_index_out_of_range_raises_as_in_eager(package: Package) -> None:
    x, words = inputs(5)
    words[3] = 50
    with pytest.raises(IndexError, match="out of"):
        package(x, words)


def test_the_manifest_says_what_runs_and_what_it_needs(package: Package) -> None:
    manifest = package.manifest
    assert [each["name"] for each in manifest["inputs"]] == ["x", "words"]
    assert manifest["machine"] and manifest["features"] == list(toolchain.features())
    assert all(kernel["forms"] and kernel["decisions"] for kernel in manifest["kernels"])
    assert list(manifest["sizes"].values()) == [[1, 300]]


def test_the_manifest_says_which_memories_a_call_has(package: Package) -> None:
    told = package.manifest["memory"]
    assert {name for name, _, _ in told["memories"]} >= {"words"} and len(told["calls"]) >= 3
    (found,) = told["at"]
    assert list(found["sizes"].values()) == [40]
    assert len(found["bytes"]) == len(found["offsets"]) == len(told["memories"]) and min(found["bytes"]) > 0
    inside = [(at, size) for at, size in zip(found["offsets"], found["bytes"], strict=True) if at is not None]
    assert max((at + size for at, size in inside), default=0) == found["arena"]


def test_weights_are_safetensors_at_addresses_that_vectors_like(path: Path, model: Model) -> None:
    with zipfile.ZipFile(path) as archive:
        assert {info.compress_type for info in archive.infolist()} == {zipfile.ZIP_STORED}
        content = archive.read("weights.safetensors")
    length = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + length])
    begin, end = header["p_first_weight"]["data_offsets"]
    held = torch.frombuffer(bytearray(content[8 + length + begin : 8 + length + end]), dtype=torch.float32)
    assert torch.equal(held.reshape(header["p_first_weight"]["shape"]), model.first.weight.detach())
    assert (8 + length + begin) % 64 == 0
    spans = sorted(tuple(each["data_offsets"]) for each in header.values())
    assert spans[0][0] == 0 and all(one[1] == other[0] for one, other in itertools.pairwise(spans))


def test_a_damaged_package_says_so(path: Path, tmp_path: Path) -> None:
    content = path.read_bytes()
    broken = tmp_path / "broken.ptp"
    with zipfile.ZipFile(path) as archive:
        place = archive.getinfo("program.so").header_offset + 500
    broken.write_bytes(content[:place] + b"????" + content[place + 4 :])
    with pytest.raises(PackageError, match=r"program\.so"):
        polytile.load_package(broken)
    broken.write_bytes(content[: len(content) // 2])
    with pytest.raises(PackageError, match="only a part"):
        polytile.load_package(broken)
    with pytest.raises(PackageError, match="there is no package"):
        polytile.load_package(tmp_path / "absent.ptp")


def test_another_processor_and_another_format_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(toolchain, "features", lambda: ("fpu", "avx4096"))
    options = {"threads": 1}
    path = polytile.package(torch.neg, (torch.randn(8),), tmp_path / "neg.ptp", check=False, folder=True, options=options)
    with pytest.raises(PackageError, match="with avx4096, which this one lacks"):
        polytile.load_package(path)
    manifest = json.loads((path / "manifest.json").read_text())
    (path / "manifest.json").write_text(json.dumps({**manifest, "format": 99}))
    with pytest.raises(PackageError, match="format 99"):
        polytile.load_package(path)


def test_weights_may_lie_apart(tmp_path: Path) -> None:
    weight, x = torch.randn(16), torch.randn(7, 16)
    path = polytile.package(lambda x: x * weight, (x,), tmp_path / "scaled", weights_apart=True, options={"threads": 1})
    torch.testing.assert_close(polytile.load_package(path, verify=True)(x[:3]), x[:3] * weight)
    Path(f"{path}.safetensors").unlink()
    with pytest.raises(PackageError, match="weights"):
        polytile.load_package(path)


def test_structures_and_constants_are_passed_as_the_model_takes_them(tmp_path: Path) -> None:
    def model(pair: tuple[Tensor, Tensor], power: int, offset: Tensor | None = None) -> list[object]:
        return [pair[0] ** power + pair[1], None, pair[0].shape[0] * 2]

    pair = torch.randn(6, 8), torch.randn(8)
    path = polytile.package(model, (pair, 3), tmp_path / "pair", options={"threads": 1})
    run, other = polytile.load_package(path), (torch.randn(5, 8), torch.randn(8))
    first, none, number = run(other, 3)
    torch.testing.assert_close(first, other[0] ** 3 + other[1])
    assert none is None and number == 10
    with pytest.raises(PackageError, match="is 3, as in the example, and cannot be 2"):
        run(other, 2)


def test_what_has_no_form_is_named_with_the_mend(tmp_path: Path) -> None:
    x = torch.randn(6, 8)
    with pytest.raises(PackageError, match=r"aten\.sort.*library.*Leave that operator out"):
        polytile.package(lambda x: torch.sort(x)[0], (x,), tmp_path / "sort")
    with pytest.raises(PackageError, match=r"changes its input"):
        polytile.package(lambda x: x.add_(1), (x,), tmp_path / "add")
    with pytest.raises(PackageError, match=r"torch\.export makes no graph"):
        polytile.package(lambda x: x + 1 if x.sum() > 0 else x, (x,), tmp_path / "branch")
    assert not list(tmp_path.iterdir())


def test_the_command_writes_checks_and_gives_the_runtime(tmp_path: Path) -> None:
    source = tmp_path / "own_model.py"
    source.write_text("import torch\ndef f(x, y):\n    return torch.exp(x) + y\n")
    target = tmp_path / "own.ptp"
    words = ("package", f"{source}:f", "-o", target, "--shapes", "12x16,16")
    assert "written" in run(*words).output and target.is_file()
    assert "1 calls, the largest difference from eager is" in run(*words, "--check").output
    assert run("package", "--runtime", tmp_path / "runtime").exit_code == 0
    assert (tmp_path / "runtime" / "polytile_package.c").is_file() and (tmp_path / "runtime" / "polytile_package.h").is_file()


@pytest.mark.slow
def test_a_cpp_program_without_python_gives_eagers_results(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 5)).eval()
    path = polytile.package(model, (torch.randn(40, 64),), tmp_path / "model.ptp")
    write_runtime(tmp_path)
    strict = ("-Wall", "-Wextra", "-Werror", "-Wno-unused-function")
    subprocess.run(["gcc", "-O1", *strict, "-c", "polytile_package.c"], cwd=tmp_path, check=True)
    link = ["g++", "-O1", "-I.", str(EXAMPLE), "polytile_package.o", "-o", "main", "-ldl", "-lpthread"]
    subprocess.run(link, cwd=tmp_path, check=True)
    rows = (2, 3, 40, 333)
    told = subprocess.check_output(["./main", str(path), *map(str, rows)], cwd=tmp_path, text=True, env={})
    for line, count in zip(told.splitlines(), rows, strict=True):
        x = torch.sin(0.001 * torch.arange(count * 64, dtype=torch.float64)).float().reshape(count, 64)
        with torch.no_grad():
            want = model(x)
        found = re.fullmatch(r"(\d+) rows: sum (\S+), largest (\S+)", line)
        assert found and int(found[1]) == count
        assert float(found[2]) == pytest.approx(float(want.double().sum()), abs=1e-3)
        assert float(found[3]) == pytest.approx(float(want.max()), abs=2e-4)
    refused = subprocess.run(["./main", str(path), "1"], cwd=tmp_path, capture_output=True, text=True, env={})
    assert refused.returncode == 1 and "has to be 2 or more" in refused.stdout


@pytest.mark.slow
def test_a_process_without_a_compiler_traces_and_lowers_nothing(path: Path, tmp_path: Path) -> None:
    script = (
        "import sys, torch, polytile\n"
        f"run = polytile.load_package({str(path)!r})\n"
        "got = run(torch.ones(9, 64), torch.arange(9))\n"
        "assert got['mean'].shape == (512,) and polytile.counters['compiler_runs'] == 0\n"
        "assert not {'torch._dynamo', 'torch._inductor', 'polytile.compiler.backend', 'polytile.frontend'} & set(sys.modules)\n"
    )
    source = str(Path(polytile.__file__).parents[1])
    environment = {"PATH": str(tmp_path), "PYTHONPATH": source, "HOME": str(tmp_path)}
    subprocess.run([sys.executable, "-c", script], check=True, env=environment)


def test_writing_a_package_warns_of_nothing(tmp_path: Path) -> None:
    with warnings.catch_warnings(), torch.no_grad():
        warnings.simplefilter("error")
        polytile.package(nn.Linear(8, 8).eval(), (torch.randn(4, 8),), tmp_path / "linear.ptp")
