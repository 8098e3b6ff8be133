"""`python -m benchmarks.gpu.graphs [--parts ...] [--seconds 300]`: CUDA graphs for changing shapes: are they right, do they pay?

Checks: chains of kernels, products, arguments changed in place, dropout, results that the caller keeps, other streams, threads
and captures by the user, at sizes in random order, each against the same program without graphs, bit by bit, or eager.
Timings: whole models, one dynamic compile each with the option `cuda_graphs` off and auto: wall time of calls one after the
other, and of calls that are waited for, kernel time, and what the graphs did. Then 100 lengths through a decoder of 16 layers:
time of the first call at each length and of later ones, graphs and their memory.
"""

from __future__ import annotations

import functools
import itertools
import json
import random
import statistics
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import polytile
from benchmarks import record
from benchmarks.command import Command
from benchmarks.gpu.host_time import timed
from polytile.compiler.programs import compiled_programs
from polytile.compiler.tiers import wait_until_built
from polytile.runtime import compile as compiling
from polytile.runtime.cuda.graphs import ProgramGraphs

MODES = ("off", "auto")
SHAPES = ((1, 16), (1, 128), (8, 200))
CHECKS: dict[str, Callable[[], dict[str, Any]]] = {}


def check(function: Callable[[], dict[str, Any]]) -> Callable[[], dict[str, Any]]:
    CHECKS[function.__name__] = function
    return function


def compiled(function: Callable[..., Any], graphs: str, **options: Any) -> Any:
    torch._dynamo.reset()
    return polytile.compile(function, dynamic=True, options={"cuda_graphs": graphs, "stall": "compile", "tune": "off"} | options)


def settle() -> None:
    wait_until_built()
    compiling.settle(120)
    polytile.wait()
    torch.cuda.synchronize()


def numbers() -> list[dict[str, int]]:
    """What graphs did for each program that has some."""
    found = [getattr(program.call, "cuda_graphs", None) for program in compiled_programs()]
    every = [graphs.numbers() for graphs in found if isinstance(graphs, ProgramGraphs)]
    return [asdict(one) for one in every if one is not None]


def both(function: Callable[..., Any], inputs: list[tuple[Any, ...]], rounds: int = 6, **options: Any) -> dict[str, Any]:
    """Calls with and without graphs at all inputs in random order; how many results differ, and from eager by how much."""
    wrong, most = 0, 0.0
    plain, graphed = compiled(function, "off", **options), compiled(function, "auto", **options)
    for given in inputs * 2:
        plain(*given), graphed(*given)
    for _ in range(12):
        plain(*inputs[0]), graphed(*inputs[0])
    settle()
    order = inputs * rounds
    random.Random(1).shuffle(order)
    for position, given in enumerate(order):
        times = random.Random(position).choice((1, 1, 2, 5))
        want = plain(*given)
        for _ in range(times):
            got = graphed(*given)
            for one, other in zip(_all(got), _all(want), strict=True):
                wrong += not torch.equal(one, other)
        if position % 16 == 0:
            polytile.wait()
            for one, other in zip(_all(got), _all(function(*given)), strict=True):
                most = max(most, float((one.double() - other.double()).abs().max() / (other.double().abs().max() + 1e-6)))
    return {"calls": len(order), "wrong": wrong, "off_eager": most, "graphs": numbers()}


def _all(results: Any) -> list[Tensor]:
    return [results] if isinstance(results, Tensor) else list(results)


def chain(x: Tensor) -> Tensor:
    for step in range(8):
        x = torch.softmax(x * 1.5, step % 2)
    return x


def mlp() -> nn.Module:
    torch.manual_seed(0)
    layers = [part for _ in range(4) for part in (nn.Linear(256, 512), nn.GELU(), nn.Linear(512, 256), nn.LayerNorm(256))]
    return nn.Sequential(*layers).to("cuda", torch.bfloat16).eval()


@check
def sizes_in_random_order() -> dict[str, Any]:
    return both(chain, [(torch.randn(n, 3 * n + 5, device="cuda"),) for n in (4, 7, 16, 33, 64, 100, 128, 250)])


@check
def products() -> dict[str, Any]:
    model = mlp()
    rows = (2, 3, 16, 17, 64, 130, 512)
    return both(lambda x: model(x), [(torch.randn(n, 256, device="cuda", dtype=torch.bfloat16),) for n in rows])


@check
def results_that_are_kept() -> dict[str, Any]:
    run, x = compiled(chain, "auto"), [torch.randn(n, 40, device="cuda") for n in (8, 24, 50)]
    for _ in range(12):
        for given in x:
            run(given)
    settle()
    kept = [(given, run(given)) for _ in range(40) for given in x]
    settle()
    kept += [(given, run(given)) for _ in range(40) for given in x]
    wrong = sum(not torch.allclose(got, chain(given), rtol=1e-4, atol=1e-6) for given, got in kept)
    return {"wrong": wrong, "addresses": len({got.data_ptr() for _, got in kept}), "results": len(kept), "graphs": numbers()}


@check
def arguments_changed_in_place() -> dict[str, Any]:
    def step(state: Tensor, x: Tensor) -> Tensor:
        y = torch.softmax(torch.softmax(x, 0), 1)
        state.add_(torch.softmax(y * 2, 0).sum(0))
        return torch.softmax(y + state, 1)

    run, wrong = compiled(step, "auto"), 0
    states = {n: (torch.zeros(n, device="cuda"), torch.zeros(n, device="cuda")) for n in (8, 31, 64)}
    for k in range(200):
        n = random.Random(k).choice((8, 31, 64))
        x = torch.randn(12, n, device="cuda")
        mine, right = states[n]
        wrong += not torch.allclose(run(mine, x), step(right, x), rtol=1e-4, atol=1e-5)
        wrong += not torch.allclose(mine, right, rtol=1e-4, atol=1e-4)
        if k in (20, 40, 80):
            settle()
    return {"wrong": wrong, "graphs": numbers()}


@check
def dropout() -> dict[str, Any]:
    def function(x: Tensor) -> Tensor:
        for step in range(4):
            x = nn.functional.dropout(torch.softmax(x, step % 2), 0.3)
        return x

    results: dict[str, list[Tensor]] = {}
    for mode in MODES:
        run = compiled(function, mode)
        x = {n: torch.ones(n, 64, device="cuda") for n in (8, 32, 70)}
        for _ in range(15):
            for n in x:
                run(x[n])
        settle()
        torch.manual_seed(3)
        results[mode] = [run(x[random.Random(k).choice((8, 32, 70))]) for k in range(200)]
    same = sum(torch.equal(a, b) for a, b in zip(*results.values(), strict=True))
    first = [r for r in results["auto"] if len(r) == 8]
    repeats = sum(torch.equal(a, b) for a, b in itertools.pairwise(first))
    return {"wrong": len(results["off"]) - same, "repeats": repeats, "graphs": numbers()}


@check
def training() -> dict[str, Any]:
    grads: dict[str, list[Tensor]] = {}
    for mode in MODES:
        torch.manual_seed(0)
        model = mlp().train()
        run, own = compiled(model, mode), []
        for k in range(60):
            n = random.Random(k).choice((4, 32, 65))
            torch.manual_seed(k)
            x = torch.randn(n, 256, device="cuda", dtype=torch.bfloat16, requires_grad=True)
            run(x).float().square().mean().backward()
            own += [given.grad.clone() for given in (x, *model.parameters()) if given.grad is not None]
            model.zero_grad()
            if k in (15, 30):
                settle()
        grads[mode] = own
    wrong = sum(not torch.equal(a, b) for a, b in zip(*grads.values(), strict=True))
    return {"wrong": wrong, "of": len(grads["off"]), "graphs": numbers()}


@check
def streams_threads_and_captures() -> dict[str, Any]:
    run, x = compiled(chain, "auto"), [torch.randn(n, 50, device="cuda") for n in (8, 24, 60)]
    right = [chain(given) for given in x]
    for _ in range(15):
        for given in x:
            run(given)
    settle()
    wrong = [0]

    def many(own: bool) -> None:
        stream = torch.cuda.Stream() if own else torch.cuda.current_stream()
        stream.wait_stream(torch.cuda.default_stream())
        with torch.inference_mode(), torch.cuda.stream(stream):  # as where it was compiled: no thread compiles
            for k in range(200):
                i = k % 3
                got = run(x[i])
                if k % 7 == 0:
                    stream.synchronize()
                    wrong[0] += not torch.allclose(got, right[i], rtol=1e-4, atol=1e-6)

    threads = [threading.Thread(target=many, args=(k % 2 == 0,)) for k in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        got = run(x[1])
    for _ in range(3):
        graph.replay()
    torch.cuda.synchronize()
    captured = torch.allclose(got, right[1], rtol=1e-4, atol=1e-6)
    return {"wrong": wrong[0] + (not captured), "graphs": numbers()}


# timings ---------------------------------------------------------------------------------------------------------------


def host_us(call: Callable[[], Any], calls: int = 30, rounds: int = 15) -> float:
    """µs of a call, several one after the other, and the device waited for at the end."""
    taken = []
    for _ in range(rounds):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        for _ in range(calls):
            call()
        torch.cuda.synchronize()
        taken.append((time.perf_counter() - begun) / calls * 1e6)
    return statistics.median(taken)


def waited_us(call: Callable[[], Any], rounds: int = 100) -> float:
    """µs of a call whose end is waited for."""
    return statistics.median(timed(call, rounds)[0])


def kernel_us(call: Callable[[], Any]) -> float:
    from benchmarks.gpu.replay import kernel_times

    return kernel_times({"it": call}, places=1).get("it", float("nan"))


def of_model(name: str) -> list[dict[str, Any]]:
    from benchmarks.gpu.models import DTYPE, MODELS, tokens

    model = MODELS[name]().to("cuda", DTYPE).eval()
    runs: dict[str, Any] = {}
    for mode in MODES:
        run = runs[mode] = polytile.compile(
            functools.partial(_first_result, model), dynamic=True, options={"cuda_graphs": mode, "persist": False}
        )
        for shape in SHAPES:
            for _ in range(3):
                run(*tokens(*shape))
        wait_until_built()
        for _ in range(30):
            for shape in SHAPES:
                run(*tokens(*shape))
        settle()
    rows = []
    for shape in SHAPES:
        given = tokens(*shape)
        calls = {mode: functools.partial(run, *given) for mode, run in runs.items()}
        for call in calls.values():
            for _ in range(40):
                call()
        settle()
        row: dict[str, Any] = {"model": name, "shape": list(shape)}
        for _ in range(2):
            for mode, call in calls.items():
                row.setdefault(f"wall_us_{mode}", []).append(host_us(call))
                row.setdefault(f"waited_us_{mode}", []).append(waited_us(call))
        row["kernel_us"] = kernel_us(calls["off"])
        row["equal"] = bool(torch.equal(calls["off"](), calls["auto"]()))
        row["graphs"] = numbers()
        print(json.dumps({k: v for k, v in row.items() if k != "graphs"}), row["graphs"][-1:], flush=True)
        rows.append(row)
    return rows


def _first_result(model: nn.Module, words: Tensor) -> Any:
    return model(words)[0]


def of_lengths(layers: int = 16, count: int = 100) -> dict[str, Any]:
    """100 lengths through 16 decoder layers (W3)."""
    from benchmarks.gpu.models import DTYPE, llama, tokens

    model = llama(layers).to("cuda", DTYPE).eval()
    found: dict[str, Any] = {}
    lengths = sorted(random.Random(0).sample(range(2, 400), count))
    for mode in MODES:
        torch._dynamo.reset()
        options = {"cuda_graphs": mode, "persist": False}
        run = polytile.compile(functools.partial(_first_result, model), dynamic=True, options=options)
        for length in lengths[::20]:
            for _ in range(4):
                run(*tokens(1, length))
        wait_until_built()
        for length in lengths[::20] * 4:
            run(*tokens(1, length))
        settle()
        free = torch.cuda.mem_get_info()[0]
        random.Random(1).shuffle(lengths)
        given = {length: tokens(1, length) for length in lengths}
        first = [waited_us(functools.partial(run, *given[length]), rounds=1) for length in lengths]
        later = [waited_us(functools.partial(run, *given[length]), rounds=1) for _ in range(10) for length in lengths]
        settle()
        steady = [waited_us(functools.partial(run, *given[length]), rounds=20) for length in lengths[:8]]
        wall = [host_us(functools.partial(run, *given[length]), rounds=5) for length in lengths[:8]]
        found[mode] = {
            "first_us": statistics.median(first), "first_worst_us": max(first), "later_us": statistics.median(later),
            "steady_us": steady, "wall_us": wall, "device_bytes": free - torch.cuda.mem_get_info()[0], "graphs": numbers()[-3:],
        }  # fmt: skip
        print(mode, json.dumps(found[mode]), flush=True)
    return found


def main() -> None:
    parser = Command(__doc__, gpu=True)
    parts = [*CHECKS, "llama", "gpt2", "bert", "lengths"]
    parser.add_argument("--parts", nargs="+", choices=parts, default=parts)
    parser.add_argument("--seconds", type=float, default=500)
    given = parser.parsed()
    torch._dynamo.config.recompile_limit = 64
    deadline = time.monotonic() + given.seconds
    results: dict[str, Any] = {}
    for part in given.parts:
        if time.monotonic() > deadline:
            results[part] = "no time left"
            continue
        begun = time.monotonic()
        try:
            with torch.inference_mode(part not in ("training", "arguments_changed_in_place")):
                results[part] = CHECKS[part]() if part in CHECKS else of_lengths() if part == "lengths" else of_model(part)
        except Exception as error:
            traceback.print_exc()
            results[part] = f"{type(error).__name__}: {error}"
        print(f"--- {part} ({time.monotonic() - begun:.0f} s)", json.dumps(results[part])[:1500], flush=True)
        Path(given.out).mkdir(parents=True, exist_ok=True)
        (Path(given.out) / "graphs_partial.json").write_text(json.dumps(results, indent=1))
    print(record.write("gpu_graphs", {"device": torch.cuda.get_device_name(), **results}, Path(given.out)))


if __name__ == "__main__":
    main()
