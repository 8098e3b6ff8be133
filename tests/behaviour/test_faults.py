"""What goes wrong around a compile: missing compiler, damaged or unusable cache, misspelt options. Results stay right."""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import polytile
from polytile import options
from polytile.errors import OptionError
from polytile.runtime import cache
from polytile.runtime import compile as compile_service
from tests.behaviour.helpers import check, compiled, decisions, in_process, lines_with, report_of, sized
from tests.compilers import stand_in


def softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, -1)


# No compiler.


def test_without_a_compiler_library_calls_do_the_work_and_say_so(empty_cache: Path, tmp_path: Path) -> None:
    nothing = tmp_path / "empty"
    nothing.mkdir()
    report = report_of(in_process(empty_cache, PATH=str(nothing), CXX=""))
    assert report["worst"] <= 1
    assert len(lines_with(report["messages"], "WARNING", "C++ compiler")) == 1, report["messages"]
    assert "apt install g++" in report["messages"]
    assert report["counters"]["kernels_generated"] == report["counters"]["compiler_runs"] == 0
    assert report["counters"]["graphs_compiled"] == 1
    assert any("mm" in operator for operator in report["counters"]["library_calls"])
    worked = [row for row in report["operators"] if row[1] != "view"]
    assert worked and all(how == "library" and "compiler" in reason for _, how, reason in worked)


def test_a_compiler_that_is_not_there_is_named(empty_cache: Path) -> None:
    report = report_of(in_process(empty_cache, "--sizes", "20", POLYTILE_CXX="g++-that-is-not-there"))
    assert report["worst"] <= 1
    assert lines_with(report["messages"], "g++-that-is-not-there", "Install")


def test_a_compiler_that_fails_leaves_the_library(empty_cache: Path, tmp_path: Path) -> None:
    """It answers what it is, and then compiles nothing."""
    broken = stand_in(tmp_path / "broken-g++", 'echo "no memory left" >&2; exit 1')
    report = report_of(in_process(empty_cache, "--sizes", "20", POLYTILE_CXX=broken))
    assert report["worst"] <= 8
    assert "no memory left" in report["messages"] or "did not compile" in report["messages"]
    assert not list(empty_cache.rglob("*.so"))


# The cache directory.


def test_a_cache_directory_that_cannot_be_used(tmp_path: Path) -> None:
    place = tmp_path / "cache"
    place.write_text("not a directory")
    report = report_of(in_process(place, "--sizes", "20"))
    assert report["worst"] <= 8
    assert len(lines_with(report["messages"], str(place), "cannot be used")) == 1, report["messages"]
    assert "POLYTILE_CACHE_DIR" in report["messages"]
    assert place.read_text() == "not a directory"


def test_a_full_disk(empty_cache: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    real = cache.write_atomically

    def full(path: Path, content: bytes, temporary: Path) -> None:
        if path.is_relative_to(empty_cache):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real(path, content, temporary)

    monkeypatch.setattr(cache, "write_atomically", full)
    check(softmax, compiled(softmax), *sized((23, 450)))
    assert decisions()[0].candidate.split()[0] in ("persistent", "looped", "split")
    warnings = [record.message for record in caplog.records if "cannot be used" in record.message]
    assert len(warnings) == 1 and "No space left" in warnings[0]
    assert not list(empty_cache.rglob("*.so"))
    cache.reset()


def test_a_damaged_cache_is_set_aside_and_made_again(empty_cache: Path) -> None:
    first = report_of(in_process(empty_cache))
    store = empty_cache / "store.sqlite3"
    libraries = sorted(empty_cache.rglob("*.so"))
    assert libraries
    for path in [store, *libraries]:
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    truncated = report_of(in_process(empty_cache))
    assert truncated["worst"] <= 8
    assert truncated["counters"]["compiler_runs"] >= 1 and truncated["counters"]["candidates_benchmarked"] > 0
    assert list(empty_cache.rglob("*.so.bad")) and lines_with(truncated["messages"], "WARNING", "truncated")
    assert lines_with(truncated["messages"], "store")
    again = report_of(in_process(empty_cache, "--alone"))
    assert again["counters"]["compiler_runs"] == again["counters"]["candidates_benchmarked"] == 0
    assert again["messages"] == "" and again["digests"] == truncated["digests"]
    assert first["worst"] <= 8


def test_garbage_in_every_file_of_the_cache(empty_cache: Path) -> None:
    report_of(in_process(empty_cache, "--sizes", "20"))
    for path in [path for path in empty_cache.rglob("*") if path.is_file()]:
        path.write_bytes(os.urandom(3000))
    for name in ("store.sqlite3-wal", "kernels/softmax.so", "README", "tmp/left-over"):
        (empty_cache / name).write_bytes(os.urandom(300))
    report = report_of(in_process(empty_cache, "--sizes", "20"))
    assert report["worst"] <= 8
    assert report["counters"]["compiler_runs"] > 0 and report["counters"]["candidates_benchmarked"] > 0
    assert (empty_cache / "kernels/softmax.so").stat().st_size == 300, "files of others are left alone"


def test_a_kernel_half_written_by_a_process_that_died_is_not_used(empty_cache: Path) -> None:
    check(softmax, compiled(softmax), *sized((23, 450)))
    names = sorted(path.name for path in (empty_cache / "kernels").glob("*.so"))
    torch._dynamo.reset()
    polytile.reset()
    compile_service.reset()
    for name in names:
        whole = (empty_cache / "kernels" / name).read_bytes()
        (empty_cache / "kernels" / name).unlink()
        (empty_cache / "tmp" / f"{name}.part").write_bytes(whole[:100])
    check(softmax, compiled(softmax), *sized((24, 451)))
    assert all(len(path.read_bytes()) > 100 for path in (empty_cache / "kernels").glob("*.so"))


# Options.


def test_a_misspelt_option_names_the_nearest() -> None:
    with pytest.raises(OptionError, match="'forse'; did you mean 'force'"):
        polytile.compile(softmax, options={"forse": "looped"})
    with pytest.raises(OptionError, match="did you mean 'shortlist'"):
        compiled(softmax, short_list=2)(*sized((4, 9)))


@pytest.mark.parametrize(
    ("name", "value", "told"),
    [
        ("tune", "always", "choose from auto, thorough, all, off"),
        ("shortlist", "many", "type int"),
        ("shortlist", True, "type int"),
        ("persist", "perhaps", "type bool"),
        ("refine", "lots", "type float"),
        ("random", "mersenne", "choose from eager, philox"),
    ],
)
def test_a_bad_value_says_what_is_allowed(name: str, value: object, told: str) -> None:
    with pytest.raises(OptionError, match=told) as error:
        polytile.compile(softmax, options={name: value})
    assert repr(name) in str(error.value) and repr(value) in str(error.value)


def test_a_bad_value_in_the_environment_names_the_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYTILE_TUNE", "atuo")
    with pytest.raises(OptionError, match="POLYTILE_TUNE.*'atuo'; choose from auto, thorough, all, off"):
        compiled(softmax)(*sized((4, 9)))


def test_options_of_one_compile_stay_with_it() -> None:
    (x,) = sized((31, 640))
    check(softmax, compiled(softmax, force="looped t1"), x)
    check(softmax, compiled(softmax, force="persistent t1"), x)
    assert {d.candidate for d in decisions()} == {"looped t1", "persistent t1"}
    assert options.get("force") == ""


def test_an_unknown_source_of_candidates_is_refused() -> None:
    with pytest.raises(OptionError, match="sources.*libary.; choose one or more from triton, library, cpp"):
        compiled(lambda x: x @ x.t(), sources="cpp,libary")(*sized((4, 9)))


# Arguments.


def test_an_index_out_of_range_raises_as_in_eager() -> None:
    def function(x: Tensor, index: Tensor) -> Tensor:
        return x[index] * 2

    run = compiled(function)
    (x,) = sized((10, 6))
    check(function, run, x, torch.tensor([1, -2, 9]))
    for bad in ([3, 10], [-11]):
        with pytest.raises(IndexError):
            function(x, torch.tensor(bad))
        with pytest.raises(IndexError):
            run(x, torch.tensor(bad))
    check(function, run, x, torch.tensor([0, 5, -10]))


@pytest.mark.parametrize("place", [0, 40, 42])
@pytest.mark.parametrize("wrong", [-1, 17, -(2**63), 2**63 - 1])
def test_a_negative_index_of_a_gather_is_out_of_range_in_whole_vectors_and_behind_them(place: int, wrong: int) -> None:
    def function(x: Tensor, index: Tensor) -> Tensor:
        return x.gather(1, index) * 2

    run = compiled(function)
    (x,) = sized((3, 17))
    index = torch.randint(0, 17, (3, 43))
    check(function, run, x, index)
    index[1, place] = wrong
    with pytest.raises(IndexError):
        run(x, index)


OLD_TRACER = torch.torch_version.TorchVersion(torch.__version__) < (2, 13)
dropped_before_2_13 = pytest.mark.skipif(OLD_TRACER, reason="its tracer drops the check")

DIVISIONS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "floor": lambda x, y: x // y,
    "remainder": lambda x, y: x % y,
    "fmod": torch.fmod,
    "truncated": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "of columns": lambda x, y: x.sum(0) // y.sum(0),
    "at some points": lambda x, y: torch.cat([x % y, x], 1),
}


@pytest.mark.parametrize("dtype", [torch.int64, torch.uint8])
@pytest.mark.parametrize("name", DIVISIONS)
def test_an_integer_division_by_zero_raises_as_in_eager(name: str, dtype: torch.dtype) -> None:
    function = DIVISIONS[name]
    run = compiled(function)
    for first, shape in enumerate(((5, 37), (3, 16))):
        x, y = (torch.randint(1, 5, shape, dtype=dtype) for _ in range(2))
        none = y.clone()
        none[:, -1] = 0
        for divisor in (none, y) if first == 0 else (y, none):
            if divisor is y:
                check(function, run, x, y)
                continue
            for call in (function, run):
                with pytest.raises(RuntimeError, match="ZeroDivisionError"):
                    call(x, none)


@dropped_before_2_13
@pytest.mark.parametrize(
    ("function", "error", "told"),
    [
        (torch.max, RuntimeError, "max(): Expected reduction dim to be specified for input.numel() == 0"),
        (torch.min, RuntimeError, "min(): Expected reduction dim to be specified for input.numel() == 0"),
        (lambda x: x.max(0), IndexError, "max(): Expected reduction dim 0 to have non-zero size"),
        (lambda x: x.min(-2)[1], IndexError, "min(): Expected reduction dim 0 to have non-zero size"),
    ],
)
def test_the_extreme_of_nothing_raises_as_in_eager(
    function: Callable[[Tensor], Any], error: type[Exception], told: str
) -> None:
    """The tracer guards no size of these operators, and of one that it cannot know their results were ±∞."""

    def positive(x: Tensor) -> Any:
        return function(x[x[:, 0] > 0])

    run = compiled(positive)
    x = torch.randn(9, 3)
    check(positive, run, x)
    for none in (-x.abs(), x[:0]):
        for call in (positive, run):
            with pytest.raises(error, match=re.escape(told)):
                call(none)


@dropped_before_2_13
def test_an_assertion_on_values_holds_though_its_result_is_unused() -> None:
    def function(index: Tensor) -> Tensor:
        return torch.nn.functional.one_hot(index, 7) * 2

    run = compiled(function)
    check(function, run, torch.tensor([1, 0, 6]))
    with pytest.raises(RuntimeError, match="Class values"):
        run(torch.tensor([1, 2, 7, 3]))
    check(function, run, torch.tensor([1, 0, 6, 5]))


def test_shapes_that_do_not_fit_raise_and_leave_the_function_usable() -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        return torch.relu(x @ y)

    run = compiled(function)
    x, y = sized((10, 6), (6, 7))
    check(function, run, x, y)
    with pytest.raises(Exception, match=r"6|5|shape|size"):
        run(x, next(sized((5, 7))))
    check(function, run, x, y)


def test_another_dtype_is_another_graph_and_right() -> None:
    def function(x: Tensor) -> Tensor:
        return torch.softmax(x, -1) * 3

    run = compiled(function)
    (x,) = sized((10, 60))
    for dtype in (torch.float32, torch.float64, torch.bfloat16, torch.float32):
        check(function, run, x.to(dtype))
    assert polytile.counters["graphs_compiled"] == 3


def test_mixed_dtypes_raise_what_eager_raises() -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        return x @ y

    x, y = sized((10, 6), (6, 7))
    with pytest.raises(RuntimeError):
        function(x, y.double())
    with pytest.raises(RuntimeError):
        compiled(function)(x, y.double())


def test_meta_tensors_work_as_in_eager() -> None:
    x = torch.empty(4, 9, device="meta")
    got = torch.compile(softmax, backend="polytile", dynamic=True)(x)
    assert got.device.type == "meta" and got.shape == (4, 9)
