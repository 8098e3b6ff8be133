"""MultiKernels of compiled C++ kernels beside a library call: the real launcher, the real clock."""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Mapping
from pathlib import Path

import pytest
import torch

from polytile import counters, options
from polytile.candidates.candidate import Candidate
from polytile.candidates.entries import Entry, NativeEntry
from polytile.dispatch.multikernel import MultiKernel
from polytile.dispatch.spec import ArgInfo, KernelSpec
from polytile.errors import NoCandidate
from polytile.problem import Config, digest
from polytile.runtime import compile as compiler
from tests.dispatch.helpers import Fake, new_process

TAKE = """
extern "C" long take(void* const* p, const long* sizes, long threads) {
  const float* x = (const float*)p[0]; const long* index = (const long*)p[1]; float* y = (float*)p[2];
  for (long i = 0; i < sizes[1]; i++) {
    if (index[i] < 0 || index[i] >= sizes[0]) return 1;
    y[i] = x[index[i]] FACTOR;
  }
  return 0;
}
"""


@dataclasses.dataclass
class Native(Candidate):
    """A candidate whose C++ source is given."""

    name: str
    source: str
    predicted: float = 1e-6
    origin: str = "cpp"
    config: Config = dataclasses.field(default_factory=Config)
    declines: str = ""

    @property
    def source_hash(self) -> str:
        return digest(self.source)

    def cost(self, sizes: Mapping[str, int]) -> float:
        return self.predicted

    def prepare(self) -> None:
        self.compilation = compiler.compile_cpp("take", self.source)

    def entry(self) -> Entry:
        library = self.compilation.result()
        return NativeEntry(library.address("take"), 1, library)


def take(x: torch.Tensor, index: torch.Tensor, y: torch.Tensor, n: int, m: int) -> None:
    y.copy_(x[index])


SPEC = KernelSpec(
    "take",
    "loop",
    digest("take"),
    (ArgInfo("x", torch.float32), ArgInfo("index", torch.int64), ArgInfo("y", torch.float32, "out")),
    ("N", "M"),
    (1, 1),
    checks=("an index is outside 0 <= i < N",),
    reference=take,
)


def candidates(factor: str = "") -> list[Native | Fake]:
    return [
        Native("plain", TAKE.replace("FACTOR", factor)),
        Native("wrong", TAKE.replace("FACTOR", "* 1.01f")),
        Native("broken", "not C++"),
        Fake("aten", 2e-5, 1.2e-6, origin="library", call=take),
    ]


def arguments(n: int = 50, m: int = 300) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, int, int]:
    return torch.randn(n), torch.randint(0, n, (m,)), torch.zeros(m), n, m


def test_compiled_and_library_kernels_compete_and_only_right_ones_win(caplog: pytest.LogCaptureFixture) -> None:
    kernel = MultiKernel(SPEC, candidates(), {"shortlist": 4, "tune": "thorough"})
    args = arguments()
    kernel(*args)
    assert torch.equal(args[2], args[0][args[1]])
    (decision,) = kernel.decisions
    assert decision.candidate in ("plain", "aten")
    notes = {standing.candidate: standing.note for standing in decision.standings}
    assert "'y' is off by" in notes["wrong"] and "did not compile" in notes["broken"]
    assert counters["candidates_benchmarked"] == 2


@pytest.mark.parametrize("again", [False, True], ids=["first call", "later call"])
def test_an_index_out_of_range_is_an_index_error_on_every_path(again: bool) -> None:
    kernel = MultiKernel(SPEC, candidates()[:1] + candidates()[3:])
    with options.override(force="plain"):
        args = arguments()
        if again:
            kernel(*args)
        args[1][7] = 50
        with pytest.raises(IndexError, match="kernel 'take': an index is outside 0 <= i < N"):
            kernel(*args)
    tuned = MultiKernel(dataclasses.replace(SPEC, reference=None), candidates()[:1] + candidates()[3:])
    with pytest.raises(IndexError):
        tuned(*args)
    args[1][7] = 0
    tuned(*args)
    assert torch.equal(args[2], args[0][args[1]])


MAY_DECLINE = """
static bool denied;
extern "C" void deny(long now) { denied = now; }
""" + TAKE.replace("FACTOR", "").replace("{\n", "{\n  if (denied) return -__LONG_MAX__ - 1;\n", 1)


def deny(candidate: Native, now: bool) -> None:
    ctypes.CFUNCTYPE(None, ctypes.c_long)(candidate.compilation.result().address("deny"))(now)


@pytest.mark.parametrize("from_the_start", [True, False])
@pytest.mark.parametrize("tune", ["off", "auto"])
def test_a_kernel_that_declines_a_call_makes_way_for_the_next_candidate(
    tune: str, from_the_start: bool, caplog: pytest.LogCaptureFixture
) -> None:
    first = Native("first", MAY_DECLINE, declines="may not run now.")
    kernel = MultiKernel(SPEC, [first, Fake("aten", 1.0, 2e-6, origin="library", call=take)], {"tune": tune})
    first.prepare()
    for denied in (from_the_start, True):
        deny(first, denied)
        for m in (300, 300, 5000):
            args = arguments(m=m)
            kernel(*args)
            assert torch.equal(args[2], args[0][args[1]])
        if denied:
            assert {decision.candidate for decision in kernel.decisions} == {"aten"}
    assert ("'first' of kernel 'take' may not run now." in caplog.text) == (tune == "off" or not from_the_start)


def test_where_all_kernels_decline_the_error_says_why() -> None:
    first = Native("first", MAY_DECLINE, declines="may not run now.")
    kernel = MultiKernel(SPEC, [first], {"tune": "off"})
    kernel(*arguments())
    deny(first, True)
    with pytest.raises(NoCandidate, match="first.*may not run now"):
        kernel(*arguments())


def test_a_second_process_compiles_the_winner_alone_and_times_nothing(empty_cache: Path) -> None:
    MultiKernel(SPEC, candidates())(*arguments())
    new_process()
    counters.reset()
    again = candidates()
    kernel = MultiKernel(SPEC, again)
    kernel(*arguments())
    assert kernel.decisions[0].link == "exact"
    assert counters["candidates_benchmarked"] == 0 and counters["compiler_runs"] == 0 and counters["store_hits"] == 1
    assert not hasattr(again[2], "compilation")
