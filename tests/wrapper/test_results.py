"""Results that an entry returns take the place of memory planned for them; where they cannot, the entry writes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import sympy
import torch
import torch.nn.functional as F

import polytile
from polytile.candidates.entries import PythonEntry
from polytile.ir.buffer import Buffer, View
from polytile.runtime import launcher
from polytile.runtime.dispatcher import Interface
from polytile.runtime.results import laid_out
from polytile.wrapper import compiled, lines
from polytile.wrapper.lines import Line
from tests.wrapper.helpers import written

N = sympy.Symbol("n", integer=True, positive=True)
ONE = sympy.Integer(1)
SIZES, STRIDES = (N, sympy.Integer(4)), (sympy.Integer(4), ONE)


class Twice:
    """A kernel 2·x that counts how it was called. Calls at sizes from `writes` on go to an entry that only writes; `made` changes
    what the other one returns."""

    def __init__(self, writes: int = 1 << 20, made: Callable[[torch.Tensor], torch.Tensor] = lambda result: result) -> None:
        self.writes, self.made, self.returned, self.written = writes, made, list[torch.Tensor](), 0
        self.dispatch = launcher.new_dispatcher(Interface("twice", (2,), lambda key, args: self.entry(args)))

    def entry(self, args: Sequence[Any]) -> PythonEntry:
        return PythonEntry(self.write) if args[-1] >= self.writes else PythonEntry(self.write, results=self.results, outputs=(1,))

    def write(self, x: torch.Tensor, out: torch.Tensor, n: int) -> None:
        self.written += 1
        torch.mul(x, 2, out=out)

    def results(self, x: torch.Tensor, out: None, n: int) -> list[torch.Tensor]:
        assert out is None
        self.returned.append(self.made(x * 2))
        return self.returned[-1:]


def buffer(name: str, role: str = "temp") -> Buffer:
    return Buffer(name, torch.float32, SIZES, STRIDES, role=role)


def program(*body: Line, kernel: Twice) -> Any:
    head = lines.DefineKernel("twice", kernel.dispatch), lines.TakeArguments(("x",)), lines.ReadSize(N, "x", 0)
    return written("program", (*head, *body), "cpp").call


def called(*names: str) -> Line:
    return lines.CallKernel("twice", names, (N,))


def alone(kernel: Twice) -> Any:
    """out = 2·x"""
    return program(lines.Allocate(buffer("out")), called("x", "out"), lines.Return(("out",)), kernel=kernel)


def test_a_returned_tensor_is_the_programs_result() -> None:
    kernel = Twice()
    call, kept = alone(kernel), []
    for n in (3, 3, 5, 3, 1):
        x = torch.randn(n, 4)
        kept.append((call([x])[0], 2 * x))
    assert all(torch.equal(got, want) and got.stride() == want.stride() for got, want in kept)
    assert kernel.written == 3, "the first call at each size decides, and writes"
    returned = [got.data_ptr() for got, _ in kept if any(got is each for each in kernel.returned)]
    assert returned == [each.data_ptr() for each in kernel.returned]
    assert len(kernel.returned) == 2 and len({got.data_ptr() for got, _ in kept}) == 5


def test_each_size_hands_over_or_writes_as_its_entry_does() -> None:
    kernel = Twice(writes=10)
    call = alone(kernel)
    for n in (4, 12, 4, 12, 4, 12):
        x = torch.randn(n, 4)
        assert torch.equal(call([x])[0], 2 * x)
    assert (kernel.written, len(kernel.returned)) == (4, 2)


class _Subclass(torch.Tensor):
    """A tensor of the user's own kind."""


def _subclass(x: torch.Tensor) -> torch.Tensor:
    return x.as_subclass(_Subclass)


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (lambda r: r.double(), "another dtype"),
        (lambda r: r[:1], "fewer elements"),
        (_subclass, "no plain tensor"),
    ],
)  # fmt: skip
def test_what_cannot_take_the_place_is_written_from_then_on(made: Any, why: str) -> None:
    kernel = Twice(made=made)
    call = alone(kernel)
    for _ in range(4):
        x = torch.randn(3, 4)
        (got,) = call([x])
        assert torch.equal(got, 2 * x) and got.dtype == torch.float32 and type(got) is torch.Tensor, why
    assert (len(kernel.returned), kernel.written) == (1, 4)


def test_an_argument_that_comes_back_does_not_become_the_result() -> None:
    kernel = Twice()
    kernel.results = lambda x, out, n: [x]  # type: ignore[method-assign]
    call = alone(kernel)
    for _ in range(3):
        x = torch.randn(3, 4)
        (got,) = call([x])
        assert torch.equal(got, 2 * x) and got.data_ptr() != x.data_ptr()


def test_memory_that_others_share_is_written_to() -> None:
    """The result reuses the memory of a temporary, and lies in a part of a larger buffer."""
    kernel = Twice()
    reused = program(
        lines.Allocate(buffer("half")), called("x", "half"), lines.Reuse(buffer("out"), buffer("half")),
        called("x", "out"), lines.Free("half"), lines.Return(("out",)), kernel=kernel,
    )  # fmt: skip
    for _ in range(3):
        x = torch.randn(3, 4)
        assert torch.equal(reused([x])[0], 2 * x)
    assert len(kernel.returned) == 2 and kernel.written == 4, "the temporary alone is handed over"

    kernel = Twice()
    wide = Buffer("wide", torch.float32, (2 * N, sympy.Integer(4)), STRIDES)
    rows = View("wide", torch.float32, SIZES, STRIDES, 4 * N)
    parts = program(
        lines.Allocate(wide), called("x", "wide"), lines.MakeView("rows", rows), called("x", "rows"),
        lines.Return(("wide",)), kernel=kernel,
    )  # fmt: skip

    def write(x: torch.Tensor, out: torch.Tensor, n: int) -> None:
        out.as_strided((n, 4), (4, 1), out.storage_offset()).copy_(2 * x)

    kernel.write = write  # type: ignore[method-assign]
    for _ in range(3):
        x = torch.randn(3, 4)
        assert torch.equal(parts([x])[0], torch.cat((2 * x, 2 * x)))


def test_other_sizes_of_the_same_memory_are_the_programs() -> None:
    kernel = Twice()
    flat = Buffer("flat", torch.float32, (4 * N,), (ONE,))
    call = program(lines.Allocate(flat), called("x", "flat"), lines.Return(("flat",)), kernel=kernel)
    kernel.write = lambda x, out, n: out.view(n, 4).copy_(2 * x)  # type: ignore[method-assign]
    for _ in range(3):
        x = torch.randn(3, 4)
        (got,) = call([x])
        assert got.shape == (12,) and torch.equal(got, 2 * x.flatten())
    assert got.data_ptr() == kernel.returned[-1].data_ptr() and len(kernel.returned) == 2


def test_many_threads_get_results_of_their_own() -> None:
    kernel, wrong = Twice(), list[int]()
    call = alone(kernel)

    def work(seed: int) -> None:
        generator, kept = torch.Generator().manual_seed(seed), []
        for n in range(1, 40):
            x = torch.randn(n % 5 + 1, 4, generator=generator)
            kept.append((call([x])[0], 2 * x))
        wrong.extend(seed for got, want in kept if not torch.equal(got, want))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong and kernel.returned


def test_what_the_library_raises_passes_on() -> None:
    kernel = Twice()
    call, x = alone(kernel), torch.randn(3, 4)
    call([x])

    def fails(*args: Any) -> Any:
        raise RuntimeError("no memory")

    kernel.made = fails
    with pytest.raises(RuntimeError, match="no memory"):
        call([x])
    kernel.made = lambda result: result
    assert torch.equal(call([x])[0], 2 * x)


def test_results_are_copied_where_their_layout_or_storage_is_not_the_programs() -> None:
    x = torch.randn(4, 6)
    assert laid_out(x, (4, 6), (6, 1), torch.float32) is x
    for result in (x.t().contiguous().t(), torch.cat((x, x))[:4], torch.cat((x, x))[4:], x.double()):
        same = laid_out(result, (4, 6), (6, 1), torch.float32)
        assert same is not result and torch.equal(same, result.float()) and same.stride() == (6, 1)
        assert same.untyped_storage().nbytes() == 96


@pytest.mark.parametrize("deterministic", [False, True])
def test_attention_hands_over_the_librarys_result(monkeypatch: pytest.MonkeyPatch, deterministic: bool) -> None:
    """The copy of the result is what a profile of the call shows; there is none."""
    monkeypatch.setattr(compiled, "CALLS", 1)
    start = compiled._Swapped.__init__

    def init(self: Any, *given: Any) -> None:
        start(self, *given)
        self.make()

    monkeypatch.setattr(compiled._Swapped, "__init__", init)
    options = {"force": "flash", "wrapper": "cpp", "stall": "tune"}
    run = polytile.compile(lambda *qkv: F.scaled_dot_product_attention(*qkv), options=options)
    kept = []
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(deterministic)
    try:
        with torch.no_grad():
            for length in (33, 33, 33, 40, 33):
                qkv = [torch.randn(2, 4, length, 16) for _ in range(3)]
                kept.append((run(*qkv), F.scaled_dot_product_attention(*qkv)))
            with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
                kept.append((run(*qkv), F.scaled_dot_product_attention(*qkv)))
    finally:
        torch.use_deterministic_algorithms(before)
    for got, want in kept:
        torch.testing.assert_close(got, want)
        assert got.stride() == want.stride()
    assert len({got.data_ptr() for got, _ in kept}) == len(kept)
    assert "aten::copy_" not in {event.name for event in seen.events()}
