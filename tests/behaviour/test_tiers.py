"""With stall="never" a graph runs at once, by ATen's operators, and its program takes over between calls."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import polytile
from polytile.compiler import backend, programs, tiers
from polytile.compiler.tiers import TieredGraph, Tiers
from polytile.dispatch.learning import Predict
from polytile.dispatch.recorded import Resume
from polytile.errors import CompilerMissing
from polytile.runtime import background, builder, collector, native
from polytile.runtime.background import Disturbance

PATIENCE = 120.0


@pytest.fixture(autouse=True)
def nothing_left_over() -> Iterator[None]:
    torch._dynamo.reset()
    polytile.reset()
    yield
    background.drop()
    assert polytile.wait(timeout=PATIENCE)


def compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    given = {"stall": "never", "isolation": "never", **options}
    made: Callable[..., Any] = torch.compile(function, backend="polytile", dynamic=True, options=given)
    return made


def activation(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.gelu(torch.softmax(x @ w, -1) * 1.5)


def sized(rows: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, 48, generator=generator), torch.randn(48, 40, generator=generator)


def tiers_met() -> list[int]:
    """1 for each graph that a program runs, 0 for each that ATen's operators do."""
    return [int(bool(program.calls)) for program in programs.compiled_programs()]


def test_the_first_call_is_served_by_aten_and_the_program_takes_over() -> None:
    run = compiled(activation)
    for rows in (7, 300):
        torch.testing.assert_close(run(*sized(rows)), activation(*sized(rows)))
    assert polytile.counters["graphs_compiled"] == 1
    assert polytile.wait(run, timeout=PATIENCE)
    for rows in (7, 31, 300):
        torch.testing.assert_close(run(*sized(rows)), activation(*sized(rows)))
    assert tiers_met() == [1] and polytile.counters["graphs_compiled"] == 1
    assert polytile.counters["kernels_generated"] > 0 and "generated" in str(polytile.explain(run, *sized(7)))


def test_explain_shows_the_program_and_what_is_pending() -> None:
    run = compiled(activation)
    run(*sized(7))
    said = polytile.explain(run, *sized(7))
    assert {row.how for row in said.operators} & {"generated", "template"} and "polytile" not in said.graphs
    assert said.sources[0].startswith("def ") or "call" in said.sources[0]
    assert polytile.wait(timeout=PATIENCE)
    after = polytile.explain(run, *sized(7))
    assert after.pending == 0 and after.decisions and after.graphs == said.graphs
    alone = polytile.explain(activation, *sized(30))
    assert {row.link for row in alone.decisions} <= {"measured", "exact", "nearby", "only"} and alone.decisions


def test_the_calling_thread_neither_compiles_nor_loads_nor_decides_nor_packs(
    monkeypatch: pytest.MonkeyPatch, empty_cache: Path
) -> None:
    from polytile.dispatch.links import measured
    from polytile.dispatch.multikernel import MultiKernel
    from polytile.matmul import packed_weights
    from polytile.runtime import compile as compiling

    seen: dict[str, set[str]] = {}

    def note(owner: Any, name: str) -> None:
        """Has it noted which threads call that function."""
        real, threads = getattr(owner, name), seen.setdefault(name, set())

        def call(*args: Any, **named: Any) -> Any:
            threads.add(threading.current_thread().name)
            return real(*args, **named)

        monkeypatch.setattr(owner, name, call)

    note(measured, "tuner")
    note(compiling, "_run_compiler")
    note(compiling, "_load_file")
    note(programs, "compile_program")
    note(MultiKernel, "choose_entry")
    note(MultiKernel, "adopt")
    note(packed_weights.panels, "make")
    weight, mine = torch.nn.Parameter(torch.randn(192, 192), requires_grad=False), threading.current_thread().name
    run = compiled(lambda x: F.gelu(torch.softmax(x @ weight, -1) * 1.5))
    for rows in (5, 70, 900):
        x = torch.randn(rows, 192)
        for _ in range(2):
            torch.testing.assert_close(run(x), F.gelu(torch.softmax(x @ weight, -1) * 1.5))
            assert polytile.wait(timeout=PATIENCE)
            assert polytile.counters["weights_packed"] == 1, "before the program's first call"
    assert not any(mine in threads for threads in seen.values()), seen
    assert all(threads for name, threads in seen.items() if name != "choose_entry"), seen


def test_kernels_inside_the_library_s_candidates_are_there_when_a_program_takes_over(
    monkeypatch: pytest.MonkeyPatch, empty_cache: Path
) -> None:
    from polytile.dispatch.multikernel import MultiKernel

    chosen: list[str] = []
    real = MultiKernel.choose_entry

    def choose(kernel: MultiKernel, args: tuple[Any, ...]) -> Any:
        chosen.append(kernel.spec.name)
        return real(kernel, args)

    monkeypatch.setattr(MultiKernel, "choose_entry", choose)

    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return F.gelu(x @ w) * x[:, :40]

    run = compiled(function)
    run(*sized(30))
    background.wait(PATIENCE, tiers._Build)  # nothing has been measured by then
    (program,) = programs.compiled_programs()
    inner = {kernel for owner, _ in program.calls if (kernel := getattr(owner.named("aten"), "unfused", None)) is not None}
    assert inner, "the epilogue of the library's product"
    for kernel in inner:
        for rows in (2, 70, 3000):
            sizes = dict.fromkeys(kernel.spec.size_names, rows)
            assert kernel.spec.make_args is not None
            kernel(*kernel.spec.make_args(sizes))
    assert not chosen


def test_a_program_takes_over_once_what_its_kernels_run_by_is_loaded() -> None:
    due: list[bool] = []
    group = Tiers()

    class Late(Resume):
        def run(self) -> None:
            due.append(group.due)

    def build() -> Callable[[list[Any]], list[Any]]:
        background.submit(Late(lambda: None, {}, (), frozenset()))
        return lambda args: args

    TieredGraph(group, "late", lambda args: args, build, repeatable=False).begin()
    assert background.wait(PATIENCE) and due == [False] and group.due


def test_the_function_itself_serves_until_the_program_is_there() -> None:
    own: list[int] = []

    def function(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        if not torch.compiler.is_compiling():
            own.append(len(x))
        return activation(x, w)

    native.module()  # the front door opens once the launcher is there
    run = polytile.compile(function, options={"stall": "never", "isolation": "never"})
    with background.background.held():
        for rows in (7, 300, 31):
            torch.testing.assert_close(run(*sized(rows)), activation(*sized(rows)))
    assert own == [300, 31] and polytile.counters["tier0_calls"] == 3
    assert polytile.wait(run, timeout=PATIENCE)
    for rows in (7, 300):
        torch.testing.assert_close(run(*sized(rows)), activation(*sized(rows)))
    assert own == [300, 31] and polytile.counters["tier0_calls"] == 3 and tiers_met() == [1]


def test_graphs_that_call_more_than_aten_or_draw_numbers_serve_themselves() -> None:
    native.module()
    own: list[str] = []

    def draws(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        if not torch.compiler.is_compiling():
            own.append("draws")
        return torch.rand_like(x) @ w

    def branches(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        if not torch.compiler.is_compiling():
            own.append("branches")
        return torch.cond(x.sum() > 0, lambda a: a @ w, lambda a: a.sin() @ w, (x,))

    for function in (draws, branches):
        run = polytile.compile(function, options={"stall": "never", "isolation": "never"})
        with background.background.held():
            for rows in (7, 300):
                run(*sized(rows))
    assert not own


def test_a_graph_that_calls_hardly_run_is_built_after_kernels_for_known_regimes() -> None:
    alive, group = background.background, Tiers()

    def serve(args: list[Any]) -> list[Any]:
        return args

    rare, common = (TieredGraph(group, name, serve, lambda: serve, repeatable=False) for name in ("rare", "common"))
    jobs = [tiers._Build(graph, alive.seconds) for graph in (rare, common)]
    assert all(job.matters() for job in jobs), "before there is a call"
    rare.seconds, common.seconds = 0.01, 0.9
    alive.seconds += 1.0
    assert [job.matters() for job in jobs] == [False, True]
    assert [job.disturbs for job in jobs] == [Disturbance.COMPILES, Disturbance.NONE]
    assert jobs[0].urgency() < (Predict.rank,) < jobs[1].urgency()
    rare.seconds = 0.2
    assert jobs[0].matters()


def test_a_forward_program_does_not_wait_for_its_backward_one() -> None:
    ready, group = threading.Event(), Tiers()
    served: list[str] = []

    def serving(name: str) -> Callable[[list[Any]], list[Any]]:
        def serve(args: list[Any]) -> list[Any]:
            served.append(name)
            return args

        return serve

    def late() -> Callable[[list[Any]], list[Any]]:
        assert ready.wait(PATIENCE)
        return serving("backward program")

    forward = TieredGraph(group, "forward", serving("forward"), lambda: serving("forward program"), repeatable=False)
    backward = TieredGraph(group, "backward", serving("backward"), late, repeatable=False)
    forward.begin()
    assert background.wait(PATIENCE)
    backward.begin()
    for graph in (forward, backward):
        graph.call([])
    ready.set()
    assert background.wait(PATIENCE)
    for graph in (forward, backward):
        graph.call([])
    assert served == ["forward program", "backward", "forward program", "backward program"]


def test_forward_and_backward_take_over() -> None:
    def step(run: Callable[..., Any], rows: int) -> tuple[torch.Tensor, torch.Tensor]:
        x, w = sized(rows)
        w.requires_grad_()
        result = run(x, w).sum(0)
        result.pow(2).sum().backward()
        assert w.grad is not None
        return result.detach(), w.grad

    run = compiled(activation)
    for rows in (7, 7, 130):
        torch.testing.assert_close(step(run, rows), step(activation, rows), rtol=1e-4, atol=1e-4)
    x, w = sized(9)
    result = run(x, w.requires_grad_())
    assert polytile.wait(timeout=PATIENCE)
    result.sum().backward()  # of a forward call at tier 0
    for rows in (7, 33, 130):
        torch.testing.assert_close(step(run, rows), step(activation, rows), rtol=1e-4, atol=1e-4)
    assert tiers_met() == [1, 1] and polytile.counters["graphs_compiled"] == 2


def test_random_numbers_are_eagers_in_every_tier() -> None:
    def noisy(x: torch.Tensor) -> torch.Tensor:
        return F.dropout(torch.tanh(x), 0.4) + torch.rand_like(x)

    def stream(run: Callable[..., Any]) -> list[torch.Tensor]:
        torch.manual_seed(7)
        results = []
        for rows in (5, 64, 5):
            results.append(run(sized(rows)[0]))
            if run is not noisy:
                polytile.wait(timeout=PATIENCE)
        return [*results, torch.rand(3)]

    torch.testing.assert_close(stream(compiled(noisy)), stream(noisy))
    assert tiers_met() == [1]


def test_arguments_that_are_written_to_are_written_once_a_call() -> None:
    def add(x: torch.Tensor, counts: torch.Tensor) -> torch.Tensor:
        counts.add_(x.sum(0))
        return torch.exp(counts) * x

    run, mine, theirs = compiled(add), torch.zeros(48), torch.zeros(48)
    for rows in (5, 64, 5, 64):
        x = sized(rows)[0] * 0.01
        torch.testing.assert_close((run(x, mine), mine), (add(x, theirs), theirs))
        assert polytile.wait(timeout=PATIENCE)
    assert tiers_met() == [1]


def test_weights_that_change_between_tiers_are_the_new_ones() -> None:
    layer = torch.nn.Linear(48, 40).requires_grad_(False)
    run = compiled(lambda x: torch.relu(layer(x)))
    x = sized(20)[0]
    with torch.no_grad():
        run(x)
        layer.weight.mul_(2)
        assert polytile.wait(timeout=PATIENCE)
        torch.testing.assert_close(run(x), torch.relu(layer(x)))
        layer.weight.add_(1)
        torch.testing.assert_close(run(x), torch.relu(layer(x)))


def test_a_program_that_cannot_be_made_leaves_aten_in_place(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    def broken(*_: Any, **__: Any) -> Any:
        raise KeyError("a defect")

    monkeypatch.setattr(backend.compiler, "compile_program", broken)
    run = compiled(activation, on_failure="library")
    for _ in range(2):
        torch.testing.assert_close(run(*sized(9)), activation(*sized(9)))
        assert polytile.wait(timeout=PATIENCE)
    assert polytile.counters["failures"] == 1 and sum("a defect" in record.message for record in caplog.records) == 1
    assert {row.how for row in polytile.explain(run, *sized(9)).operators} == {"library"}


def test_a_program_that_fails_in_its_first_call_is_replaced_for_good(monkeypatch: pytest.MonkeyPatch) -> None:
    real = programs.compile_program

    def breaking(*args: Any, **named: Any) -> Any:
        made = real(*args, **named)

        def call(given: list[Any]) -> list[Any]:
            given.clear()
            raise KeyError("a defect")

        object.__setattr__(made, "call", call)
        return made

    monkeypatch.setattr(backend.compiler, "compile_program", breaking)
    run = compiled(activation, on_failure="library")
    run(*sized(9))
    assert polytile.wait(timeout=PATIENCE)
    for rows in (9, 50):
        with polytile.options.override(on_failure="library"):
            torch.testing.assert_close(run(*sized(rows)), activation(*sized(rows)))
    assert polytile.counters["failures"] == 1


MANY = collector.MANY_OBJECTS


@pytest.mark.parametrize(
    ("objects", "known", "searches"), [(100, 0, 0), (2 * MANY, 0, 1), (2 * MANY, 4 * MANY, 1), (2 * MANY, 20 * MANY, 0)]
)
def test_the_call_that_traces_a_large_graph_leaves_no_search_for_garbage_to_later_ones(
    objects: int, known: int, searches: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python searches nothing where a quarter of all objects is not new."""
    monkeypatch.setattr(collector, "_searched", known)
    monkeypatch.setattr(collector, "_unsearched", 0)
    gc.collect()
    before = gc.get_stats()[2]["collections"]
    with collector.at_rest_then_searched():
        kept = [[number] for number in range(objects)]
    assert gc.get_stats()[2]["collections"] - before == searches and gc.isenabled() and len(kept) == objects


def test_a_program_made_in_the_thread_waits_while_a_caller_traces(
    monkeypatch: pytest.MonkeyPatch, empty_cache: Path
) -> None:
    """Between two kernels: a program of a GPU takes seconds of the GIL."""
    begun, go_on, made = (threading.Event() for _ in range(3))
    real = programs._Kernels.call_of

    def call_of(kernels: Any, operation: Any) -> Any:
        begun.set()
        assert go_on.wait(PATIENCE)
        call = real(kernels, operation)
        made.set()
        return call

    monkeypatch.setattr(programs._Kernels, "call_of", call_of)
    run = compiled(lambda x, w: torch.softmax(x @ w, -1) @ w.t(), builder="thread")
    run(*sized(7))
    assert begun.wait(PATIENCE)
    with background.background.held():
        go_on.set()
        assert not made.wait(2.0)
    assert polytile.wait(timeout=PATIENCE) and made.is_set() and tiers_met() == [1]


def test_threads_call_while_programs_take_over() -> None:
    run, wrong, stop = compiled(activation), list[BaseException](), threading.Event()
    run(*sized(40))

    def work(rows: int) -> None:
        try:
            expected = activation(*sized(rows))
            while not stop.is_set():
                torch.testing.assert_close(run(*sized(rows)), expected)
        except BaseException as error:
            wrong.append(error)

    threads = [threading.Thread(target=work, args=(rows,)) for rows in (40, 170)]
    for thread in threads:
        thread.start()
    polytile.wait(timeout=PATIENCE)
    stop.set()
    for thread in threads:
        thread.join()
    assert not wrong and all(tiers_met())


def test_deterministic_algorithms_and_plans_have_the_same_kernels_from_the_first_call_on() -> None:
    torch.use_deterministic_algorithms(True)
    try:
        run = compiled(activation)
        first = run(*sized(40))
        assert tiers_met() == [1] and not background.pending()
        assert torch.equal(run(*sized(40)), first) and polytile.counters["candidates_benchmarked"] == 0
    finally:
        torch.use_deterministic_algorithms(False)


def test_forgetting_what_is_compiled_drops_what_is_pending() -> None:
    run = compiled(activation)
    run(*sized(9))
    torch.compiler.reset()
    torch.testing.assert_close(run(*sized(9)), activation(*sized(9)))
    assert polytile.wait(timeout=PATIENCE)


WITHOUT_LAUNCHER = """
import threading, torch, polytile
from polytile.runtime import compile, native

build, go_on = compile._build, threading.Event()
def later(order, cache):
    if order.name == "launcher":
        go_on.wait()
    return build(order, cache)
compile._build = later

class Model(torch.nn.Sequential):
    def forward(self, x):
        return super().forward(x)

model = Model(torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(288, 200)).eval()
run, x = polytile.compile(model), torch.randn(5, 3, 8, 8)
with torch.no_grad():
    torch.testing.assert_close(run(x), model(x))
    print(native.is_ready(), polytile.counters["tier0_calls"])
    go_on.set()
    assert polytile.wait(timeout=120)
    for _ in range(2):
        torch.testing.assert_close(run(x), model(x), rtol=1e-4, atol=1e-4)
    print(native.is_ready(), polytile.counters["tier0_calls"], "without Dynamo" in str(run.forward.polytile_front_door))
"""


def test_the_first_call_does_not_wait_for_the_launcher_s_compiler(empty_cache: Path) -> None:
    variables = {"POLYTILE_CACHE_DIR": str(empty_cache), "POLYTILE_STALL": "never", "POLYTILE_BUILDER": "thread"}
    command, environment = [sys.executable, "-c", WITHOUT_LAUNCHER], {**os.environ, **variables}
    process = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert process.returncode == 0, process.stderr
    assert process.stdout.splitlines() == ["False 1", "True 1 True"]


@pytest.mark.parametrize(("stall", "module", "begun"), [("never", True, 1), ("never", False, 0), ("tune", True, 0)])
def test_what_the_first_call_needs_begins_before_the_tracer_is_imported(
    stall: str, module: bool, begun: int, monkeypatch: pytest.MonkeyPatch, empty_cache: Path
) -> None:
    """Of a module: it is there to be called soon, and its parameters say where."""
    found: list[str] = []
    monkeypatch.setattr(builder, "begin", lambda linear: found.append("builder"))
    polytile.compile(torch.nn.Linear(3, 4) if module else activation, options={"stall": stall, "builder": "process"})
    assert len(found) == begun


PROGRAM = """
import os, sys, time, torch, polytile
def f(x, w): return torch.nn.functional.gelu(torch.softmax(x @ w, -1))
run = torch.compile(f, backend="polytile", dynamic=True)
x, w = torch.randn(500, 64), torch.randn(64, 64)
run(x, w)
{then}
"""


def ended(then: str, cache: Path) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "POLYTILE_CACHE_DIR": str(cache), "POLYTILE_STALL": "never"}
    program = PROGRAM.format(then=textwrap.dedent(then))
    return subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True, timeout=PATIENCE, check=False
    )


@pytest.mark.parametrize("seconds", [0.0, 0.3, 1.5])
def test_a_process_ends_at_once_whatever_is_pending(seconds: float, empty_cache: Path) -> None:
    then = f"""
    time.sleep({seconds})
    begun = time.monotonic()
    import atexit
    atexit._run_exitfuncs()
    print(time.monotonic() - begun)
    """
    process = ended(then, empty_cache)
    assert process.returncode == 0 and not process.stderr, process.stderr
    assert float(process.stdout) < 5.0


def test_a_forked_child_calls_and_learns_by_itself(empty_cache: Path) -> None:
    then = """
    child = os.fork()
    if child == 0:
        torch.set_num_threads(1)  # GNU OpenMP has no threads after a fork, in eager either
    for rows in (50, 400):
        torch.testing.assert_close(run(x[:rows], w), f(x[:rows], w))
    if child == 0:
        os._exit(0)
    print(os.waitpid(child, 0)[1], polytile.wait(timeout=100))
    """
    process = ended(then, empty_cache)
    assert process.stdout.split() == ["0", "True"], process.stdout + process.stderr


def test_without_a_compiler_the_graph_stays_with_aten_and_nothing_has_failed(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: Any, **__: Any) -> Any:
        raise CompilerMissing("none")

    monkeypatch.setattr(backend.compiler, "compile_program", missing)
    run = compiled(activation)
    for _ in range(2):
        torch.testing.assert_close(run(*sized(9)), activation(*sized(9)))
        assert polytile.wait(timeout=PATIENCE)
    assert polytile.counters["failures"] == 0
    assert all("no C++ compiler" in row.reason for row in polytile.explain(run, *sized(9)).operators)
