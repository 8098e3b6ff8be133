"""Programs in C: when they take over, what they leave to Python, and the memory they share."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sympy
import torch

import polytile
from polytile.ir.buffer import Buffer
from polytile.ir.program import Program
from polytile.passes.pipeline import optimize
from polytile.runtime import compile as compiling
from polytile.runtime import program as in_c
from polytile.wrapper import compiled, cpp, lines, python
from tests.passes.helpers import S0, S1, Net
from tests.wrapper.helpers import lines_of, wrapped, written
from tests.wrapper.test_python import a_small_network

GOLDEN = Path(__file__).parent / "golden"
ONE = sympy.Integer(1)


def chain(length: int) -> Program:
    """x → sin → cos → ..., every step stored, two results."""
    net = Net()
    x = net.input("x", S0, S1)
    half = x
    for step in range(length):
        x = net.op("cos" if step % 2 else "sin", x)
        half = x if step == length // 2 else half
    return net.program(x, half)


def serving(call: Any) -> object:
    """What makes a program's calls now."""
    return call.__globals__["serve"]


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    monkeypatch.setattr(compiled, "CALLS", 3)
    yield 3


def test_the_text_of_a_program_is_what_a_person_found_good() -> None:
    program, inplace = optimize(a_small_network())
    given = lines_of(program, inplace)
    text = cpp.write(given, python.write("small", given))
    path = GOLDEN / "small_network.c.txt"
    if os.environ.get("POLYTILE_ACCEPT") == "1":
        path.write_text(text)
    assert path.exists(), f"{path} does not exist; POLYTILE_ACCEPT=1 writes it."
    assert text == path.read_text(), f"{path} differs; POLYTILE_ACCEPT=1 accepts the new text."


def test_c_takes_over_between_calls_once_a_program_is_called_often(soon: int, empty_cache: Path) -> None:
    given, x = lines_of(chain(4)), torch.randn(2, 3)
    want = x.sin().cos().sin().cos()
    made = compiled.wrap("chain", given)
    for _ in range(soon):
        assert not isinstance(serving(made.call), in_c.module().Program)
        torch.testing.assert_close(made.call([x])[0], want)
    compiling.settle(60)
    for _ in range(100):
        if isinstance(serving(made.call), in_c.module().Program):
            break
        threading.Event().wait(0.05)
    assert isinstance(serving(made.call), in_c.module().Program)
    for shape in ((2, 3), (5, 1), (0, 4)):
        x = torch.randn(shape)
        torch.testing.assert_close(made.call([x])[0], x.sin().cos().sin().cos())
    again = compiled.wrap("another name", given)
    assert isinstance(serving(again.call), in_c.module().Program), "what the cache holds serves from the first call"


def test_a_program_stays_with_python_where_there_is_no_compiler(
    soon: int, empty_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_c.module()  # the launcher is there

    def missing() -> Any:
        raise polytile.errors.CompilerMissing("no compiler")

    monkeypatch.setattr(compiling.toolchain, "find", missing)
    made, x = compiled.wrap("chain", lines_of(chain(3))), torch.randn(2, 3)
    for _ in range(2 * soon):
        torch.testing.assert_close(made.call([x])[0], x.sin().cos().sin())
    assert not isinstance(serving(made.call), in_c.module().Program)


def test_programs_stay_with_python_where_torch_is_not_as_it_was(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    given, x = lines_of(chain(3)), torch.randn(2, 3)
    monkeypatch.setattr(in_c, "WRAP", ("nowhere",))
    in_c._prepare.cache_clear()
    try:
        made = compiled.wrap("chain", given)
        assert in_c.module() is None and "programs run by Python's wrapper" in caplog.text
        torch.testing.assert_close(made.call([x])[0], x.sin().cos().sin())
    finally:
        monkeypatch.undo()
        in_c._prepare.cache_clear()
    assert in_c.module() is not None


def test_lines_without_a_form_in_c_stay_with_python() -> None:
    buffer = Buffer("buf0", torch.float32, (S0,), (ONE,), torch.device("meta"))
    given = lines.TakeArguments(("s0",)), lines.Allocate(buffer), lines.Return(("buf0",))
    with pytest.raises(cpp.NoProgramInC, match="Allocate: 'meta'"):
        cpp.write(given, python.write("elsewhere", given))
    (got,) = compiled.wrap("elsewhere", given).call([4])
    assert got.shape == (4,) and got.is_meta


class _Subclass(torch.Tensor):
    pass


def test_arguments_that_are_no_plain_tensors_are_pythons() -> None:
    call = wrapped(chain(2), target="cpp").call
    x = torch.randn(2, 3)
    for odd in (x.as_subclass(_Subclass), torch.nn.Parameter(x)):
        args: list[Any] = [odd]
        with torch.no_grad():
            torch.testing.assert_close(call(args)[0].as_subclass(torch.Tensor), x.sin().cos())
        assert args == []
    with pytest.raises(ValueError, match="unpack"):
        call([x, x])
    with pytest.raises(TypeError, match="one list"):
        call(x, x)  # type: ignore[call-arg]


def test_numbers_beyond_64_bits_are_pythons_or_an_error() -> None:
    double = written("double", (lines.TakeArguments(("s0",)), lines.Return((S0,))), "cpp").call
    assert double([2**70]) == [2**70] and double([True]) == [True]
    square = written("square", (lines.TakeArguments(("s0",)), lines.Return((S0 * S0,))), "cpp").call
    assert square([-(2**31)]) == [2**62]
    with pytest.raises(OverflowError, match="does not fit a signed 64-bit integer"):
        square([2**40])


def test_memory_that_kernels_alone_see_is_one_allocation_however_large() -> None:
    """The kernels of these programs fill what they write with NaN first: memory that lived on would lose its values."""
    net = Net()
    x, small = net.input("x", S0, S1), net.input("small", S1)
    first, second, third = net.op("sin", x), net.op("cos", x), net.op("sin", small)
    total = net.op("add", net.op("mul", first, second), net.op("cos", third))
    program = net.program(net.op("mul", net.op("sin", total), net.op("exp", net.op("cos", second))))
    made = wrapped(program, target="cpp")
    assert made.source.count("api->carve(") >= 3
    call = made.call
    for shape in ((2, 3), (64, 65), (1, 1), (0, 7), (2, 3), *((n, 5) for n in range(1, 12))):
        x, small = torch.randn(shape), torch.randn(shape[1])
        (got,) = call([x, small])
        want = (x.sin() * x.cos() + small.sin().cos()).sin() * x.cos().cos().exp()
        torch.testing.assert_close(got, want)
        assert got.untyped_storage().nbytes() == 4 * got.numel(), "a result has memory of its own"


def test_many_threads_call_one_program() -> None:
    call = wrapped(chain(5), target="cpp").call
    wrong: list[object] = []

    def work(seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        for n in range(1, 30):
            x = torch.randn(n % 7 + 1, 3, generator=generator)
            if not torch.equal(call([x])[0], x.sin().cos().sin().cos().sin()):
                wrong.append((seed, n))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_a_whole_function_runs_in_c(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "CALLS", 1)

    def function(x: torch.Tensor, w: torch.Tensor, state: torch.Tensor) -> tuple[Any, ...]:
        h = torch.softmax(x.sin() @ w, -1)
        state.add_(h.sum(0))
        values, places = torch.sort(h, -1)
        return h.t(), x.shape[0] * 2, values + 1, places, x[1:], h.sum() * 2.5

    run = polytile.compile(function, options={"wrapper": "cpp"})
    w = torch.randn(7, 9)
    with torch.no_grad():
        run(torch.randn(4, 7), w, torch.zeros(9))
        program = polytile.compiler.programs.compiled_programs()[-1]
        compiling.settle(60)
        for _ in range(100):
            if isinstance(serving(program.call), in_c.module().Program):
                break
            threading.Event().wait(0.05)
        assert isinstance(serving(program.call), in_c.module().Program)
        for n in (4, 9, 2, 33):
            x, mine, theirs = torch.randn(n, 7), torch.zeros(9), torch.zeros(9)
            got, want = run(x, w, mine), function(x, w, theirs)
            torch.testing.assert_close((got, mine), (want, theirs))
            pairs = zip(got, want, strict=True)
            assert all(one.stride() == other.stride() for one, other in pairs if isinstance(one, torch.Tensor))
