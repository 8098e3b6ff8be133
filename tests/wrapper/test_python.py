"""The Python wrapper: text that a person can read, and that does what its lines say."""

from __future__ import annotations

import gc
import linecache
import os
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sympy
import torch
from torch.utils._sympy.functions import (
    CeilToInt,
    FloatPow,
    FloorDiv,
    IntTrueDiv,
    Max,
    Mod,
    PowByNatural,
    ToFloat,
    TruncToInt,
)

from polytile.ir.buffer import Buffer
from polytile.ir.program import Program
from polytile.passes.pipeline import optimize
from polytile.wrapper import Wrapped, backend, lines, tensors
from polytile.wrapper.lines import Argument, Line
from polytile.wrapper.tensors import as_declared
from tests.passes.helpers import S0, S1, S2, Net, softmax
from tests.wrapper.helpers import LibraryNet, lines_of, wrapped

aten = torch.ops.aten
GOLDEN = Path(__file__).parent / "golden"
ONE, THREE = sympy.Integer(1), sympy.Integer(3)


def python(*given: Line) -> Wrapped:
    return backend("python")("test", given)


def body(*given: Line) -> list[str]:
    """The lines of the function's text."""
    return [text.removeprefix("    ") for text in python(*given).source.split("def call(args):\n")[1].splitlines()]


# text ----------------------------------------------------------------------------------------------------------------


def a_small_network() -> Program:
    """softmax((x @ w + b).sin(), -1) with a library call and a view on the way."""
    net = LibraryNet()
    x, w, b = net.input("x", S0, S1), net.input("w", S1, S2), net.input("b", S2)
    hidden = net.op("add", net.mm(x, w), b)
    smooth = net.library(aten.gelu.default, hidden, like=(hidden,))
    return net.program(softmax(net, smooth), net.permute(smooth, 1, 0))


def test_the_text_of_a_program_is_what_a_person_found_good() -> None:
    program, inplace = optimize(a_small_network())
    text = wrapped(program, inplace).source
    path = GOLDEN / "small_network.py.txt"
    if os.environ.get("POLYTILE_ACCEPT") == "1":
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert path.exists(), f"{path} does not exist; POLYTILE_ACCEPT=1 writes it."
    assert text == path.read_text(), f"{path} differs; POLYTILE_ACCEPT=1 accepts the new text."


def test_sizes_print_as_python() -> None:
    sizes = [2 * S0 + 1, FloorDiv(S0, 3) * 2, Mod(S0, 4), Max(S0, 5), PowByNatural(S0, 2), S0**2]
    sizes += [TruncToInt(1.7 * ToFloat(S0)), CeilToInt(IntTrueDiv(S0, 2)), sympy.Integer(-3), 0.5 * ToFloat(S0)]
    sizes += [sympy.Lt(S0, 9), sympy.Eq(S0, 7), sympy.true, FloatPow(ToFloat(S0), 0.5)]
    got = python(lines.TakeArguments(("s0",)), lines.Return(tuple(sizes))).call([7])
    want = [15, 4, 3, 7, 49, 49, 11, 4, -3, 3.5, True, True, True, 7**0.5]
    assert got == want
    assert [type(g) for g in got] == [type(w) for w in want]


@pytest.mark.parametrize(
    "value",
    [
        None, True, 3, -1.5, 2.0**-40, float("inf"), float("nan"), 1 + 2j, "floor", torch.bfloat16, torch.strided,
        torch.channels_last, torch.device("cpu"), [1, [2, None]], (1,), (), {"a": [1]}, slice(1, 2),
        torch.ops.aten.sin.default, torch.Generator(),
    ],
)  # fmt: skip
def test_any_value_can_be_an_argument_of_a_library_call(value: Any) -> None:
    got: list[Any] = []
    python(
        lines.CallLibrary(None, lambda *args, **kwargs: got.extend([*args, kwargs]), (value,), (("named", value),)),
        lines.Return(()),
    ).call([])
    assert repr(got) == repr([value, {"named": value}])


def test_argument_names_may_be_words_of_python() -> None:
    call = lines.CallLibrary("result0", lambda **kwargs: kwargs, (), (("from", 1), ("to", 2)))
    assert python(call, lines.Return(("result0",))).call([]) == [{"from": 1, "to": 2}]


def test_operators_whose_overload_is_a_word_of_python_can_be_called() -> None:
    x = torch.zeros(100, dtype=torch.int64)
    call = lines.CallLibrary(None, aten.random_.__getattr__("from"), (Argument("x"), 3, 5), ())
    python(lines.TakeArguments(("x",)), call, lines.Return(())).call([x])
    assert set(x.tolist()) == {3, 4}


def test_objects_of_one_name_stay_apart() -> None:
    first, second = (lambda: 1), (lambda: 2)
    calls = [lines.CallLibrary(f"r{k}", f, (), ()) for k, f in enumerate((first, second, first))]
    assert python(*calls, lines.Return(("r0", "r1", "r2"))).call([]) == [1, 2, 1]


def test_an_accelerator_is_made_current_where_it_is_not() -> None:
    device = torch.device("cuda:1")
    buffer = Buffer("buf0", torch.float32, (S0,), (ONE,), device)
    kernel = lines.CallKernel("kernel", ("buf0",), (S0,))
    text = body(lines.OnDevice(device), lines.Allocate(buffer), kernel, lines.Return(("buf0",)))
    assert text == [
        "if _current_device() != 1:",
        "    with torch.cuda.device(1):",
        "        return call(args)",
        "buf0 = _empty_cuda((s0,), (1,), torch.float32)",
        "kernel(buf0, s0)",
        "return [buf0]",
    ]


def test_the_current_accelerator_decides_how_a_program_is_entered(monkeypatch: pytest.MonkeyPatch) -> None:
    current, entered = [0], []

    @contextmanager
    def device(index: int) -> Iterator[None]:
        entered.append(index)
        before, current[0] = current[0], index
        yield
        current[0] = before

    monkeypatch.setattr(tensors, "current_device", lambda kind: lambda: current[0])
    monkeypatch.setattr(torch.cuda, "device", device)
    made = python(lines.OnDevice(torch.device("cuda:1")), lines.TakeArguments(("x",)), lines.Return(("x",)))
    assert made.call([7]) == [7] and entered == [1] and current == [0]
    current[0] = 1
    assert made.call([8]) == [8] and entered == [1]


def test_programs_of_one_accelerator_run_with_it_current() -> None:
    net = Net()
    program = net.program(net.op("sin", net.input("x", S0)))
    there = {n: replace(b, device=torch.device("cuda", 0)) for n, b in program.buffers.items()}
    kinds = [type(line) for line in lines_of(replace(program, buffers=there))]
    assert kinds.count(lines.OnDevice) == 1
    assert kinds.index(lines.OnDevice) < kinds.index(lines.TakeArguments) < kinds.index(lines.Allocate)


def test_programs_of_several_accelerators_name_the_device_of_each_buffer() -> None:
    net = Net()
    program = net.program(net.op("sin", net.op("cos", net.input("x", S0))))
    there = {n: replace(b, device=torch.device("cuda", k)) for k, (n, b) in enumerate(program.buffers.items())}
    assert lines.OnDevice not in [type(line) for line in lines_of(replace(program, buffers=there))]


def test_tracebacks_show_the_line_and_its_text_goes_with_the_program() -> None:
    def fails(*args: Any) -> None:
        raise ZeroDivisionError("on purpose")

    made = python(lines.DefineKernel("broken", fails), lines.CallKernel("broken", (), ()), lines.Return(()))
    with pytest.raises(ZeroDivisionError) as caught:
        made.call([])
    assert "broken()" in "".join(traceback.format_exception(caught.value))
    file = made.call.__code__.co_filename
    assert file in linecache.cache
    del made, caught
    gc.collect()
    assert file not in linecache.cache


def test_it_is_handed_on_as_a_plain_function() -> None:
    made = python(lines.TakeArguments(("x",)), lines.Return(("x",)))
    assert made.call._boxed_call is True  # type: ignore[attr-defined]


# library results in another layout -----------------------------------------------------------------------------------


def test_a_result_in_the_declared_strides_is_passed_on() -> None:
    x = torch.ones(3, 4)
    assert as_declared(x, (4, 1)) is x
    assert as_declared(x[:, :1], (9, 7)).stride() == (9, 7), "strides along a size above 1 count"
    assert as_declared(x[:1], (99, 1)).stride() == (4, 1), "those along a size of 1 do not"
    assert as_declared(x[:0], (1, 3)).stride() == (4, 1), "and none do where there are no elements"
    assert as_declared(None, (1,)) is None, "a result that an operator leaves undefined stays so"


def test_a_result_in_other_strides_is_copied_into_the_declared_ones() -> None:
    x = torch.randn(3, 4).t()
    got = as_declared(x, (3, 1))
    assert got.stride() == (3, 1) and torch.equal(got, x)


def test_a_sign_left_to_be_changed_is_changed() -> None:
    x = torch.randn(3, dtype=torch.complex64).conj().imag
    assert x.is_neg()
    got = as_declared(x, (2,))
    assert not got.is_neg() and torch.equal(got, x)
