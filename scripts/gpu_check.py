"""Checks polytile on an NVIDIA GPU, part by part: `python scripts/gpu_check.py [PART ...] [--seconds 300]`.

Each check is one line, "ok" or what went wrong; a part that fails does not keep the others from running. Parts: facts,
smoke, behaviour, machinery, lowerings (the tests of all lowerings, compiled and compared with eager on the device). Where
the environment names a directory OUT, whole tracebacks go to OUT/failures.txt.
"""

from __future__ import annotations

import argparse
import logging
import os
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]
os.environ.setdefault("POLYTILE_CACHE_DIR", tempfile.mkdtemp(prefix="polytile-gpu-"))

import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
from torch import Tensor, nn  # noqa: E402

import polytile  # noqa: E402

Check = Callable[[], Any]
CHECKS: dict[str, list[tuple[str, Check]]] = {
    "facts": [],
    "smoke": [],
    "behaviour": [],
    "machinery": [],
    "lowerings": [],
}
failures: list[str] = []


def check(part: str, name: str) -> Callable[[Check], Check]:
    def add(function: Check) -> Check:
        CHECKS[part].append((name, function))
        return function

    return add


def run(part: str, deadline: float) -> None:
    for name, function in CHECKS[part]:
        if time.monotonic() > deadline:
            print(f"{part}: {name}: not run, no time left")
            continue
        torch._dynamo.reset()
        polytile.reset()
        torch.manual_seed(0)
        began = time.monotonic()
        try:
            said = function()
            torch.cuda.synchronize()
            print(f"ok   {part}: {name} ({time.monotonic() - began:.1f} s){f': {said}' if said else ''}", flush=True)
        except BaseException as error:
            if isinstance(error, KeyboardInterrupt):
                raise
            failures.append(f"{part}: {name}")
            if out := os.environ.get("OUT"):
                with Path(out, "failures.txt").open("a") as file:
                    file.write(f"=== {part}: {name}\n{''.join(traceback.format_exception(error))}\n")
            last = traceback.extract_tb(error.__traceback__)[-1]
            text = str(error).strip().replace("\n", " | ")
            print(f"FAIL {part}: {name} ({time.monotonic() - began:.1f} s): {type(error).__name__}: {text[:700]} "
                  f"[{Path(last.filename).name}:{last.lineno}]", flush=True)  # fmt: skip


def compiled(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    return torch.compile(function, backend="polytile", dynamic=True, fullgraph=True, options=options)


def wide(values: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(v.double() if isinstance(v, Tensor) and v.is_floating_point() else v for v in values)


def leaves(value: Any) -> list[Any]:
    return list(torch.utils._pytree.tree_leaves(value))


def agree(got: Any, eager: Any, exact: Any = None, what: str = "") -> None:
    """Raises AssertionError unless `got` is about as close to `exact` (float64) as eager, with eager's types and strides."""
    for k, (g, e, x) in enumerate(
        zip(leaves(got), leaves(eager), leaves(exact if exact is not None else eager), strict=True)
    ):
        place = f"{what} output {k}"
        assert g.dtype == e.dtype and g.shape == e.shape and g.device == e.device, (
            f"{place}: {g.dtype} {g.shape} {g.device}"
        )
        assert g.stride() == e.stride() or g.numel() == 0, f"{place}: strides {g.stride()}, eager's {e.stride()}"
        if not g.is_floating_point():
            assert torch.equal(g, e), f"{place} differs"
            continue
        scale = x.double().abs().nan_to_num(posinf=0, neginf=0).max().clamp_min(1e-30) if x.numel() else 1.0
        own, off = (
            (t.double() - x.double()).abs().nan_to_num(nan=0.0).max() / scale if t.numel() else 0.0 for t in (e, g)
        )
        assert torch.equal(g.isnan(), e.isnan()), f"{place} has NaN elsewhere"
        allowed = 4 * own + 16 * torch.finfo(g.dtype).eps
        assert off <= allowed, f"{place} is off by {float(off):.2g}, {float(allowed):.2g} is allowed"


def compare(function: Callable[..., Any], *calls: tuple[Any, ...], **options: Any) -> str:
    call = compiled(function, **options)
    for args in calls:
        agree(
            call(*args),
            function(*args),
            function(*wide(args)),
            str([tuple(a.shape) for a in args if isinstance(a, Tensor)]),
        )
    return account()


def account() -> str:
    """What ran: candidates chosen for the last sizes, and library calls."""
    kernels = [k for p in polytile.compiler.compiled_programs() for k in p.multikernels]
    chosen = [f"{k.decisions[-1].candidate} by {k.decisions[-1].link}" for k in kernels if k.decisions]
    rejected = {name: why.splitlines()[0][:160] for k in kernels for name, why in k._rejected.items()}
    library = sum(polytile.counters["library_calls"].values())
    trouble = f" REJECTED {len(rejected)}: {next(iter(rejected.items()))}" if rejected else ""
    return f"{'; '.join(chosen[:3])}, {library} library{trouble}"


def x(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, device="cuda").to(dtype)


# facts ------------------------------------------------------------------------------------------------------------------


@check("facts", "software")
def _() -> str:
    import triton

    header = Path(sysconfig.get_path("include"), "Python.h").exists()
    return f"torch {torch.__version__}, triton {triton.__version__}, Python {sys.version.split()[0]}, Python.h {header}"


@check("facts", "device")
def _() -> str:
    from polytile.runtime.cuda import device, driver

    return f"{device.facts(0)}, {device.fingerprint(0)}, driver {driver.version()}"


@check("facts", "launcher in C")
def _() -> str:
    from polytile.runtime import native

    assert native.module() is not None, "the launcher is not compiled"
    return "fast path"


# smoke ------------------------------------------------------------------------------------------------------------------

SMOKE: dict[str, tuple[Callable[..., Any], Callable[[int, int, torch.dtype], tuple[Any, ...]]]] = {
    "pointwise": (lambda a: F.gelu(a) * a + 1, lambda m, n, t: (x(m, n, dtype=t),)),
    "softmax": (lambda a: torch.softmax(a, -1), lambda m, n, t: (x(m, n, dtype=t),)),
    "layer norm": (lambda a, w, b: F.layer_norm(a, (a.shape[-1],), w, b),
                   lambda m, n, t: (x(m, n, dtype=t), x(n, dtype=t), x(n, dtype=t))),
    "column sum": (lambda a: a.sum(0), lambda m, n, t: (x(m, n, dtype=t),)),
    "row sum": (lambda a: a.sum(-1), lambda m, n, t: (x(m, n, dtype=t),)),
    "cumsum": (lambda a: a.cumsum(-1), lambda m, n, t: (x(m, n, dtype=t),)),
    "transpose add": (lambda a, b: a + b.t(), lambda m, n, t: (x(m, n, dtype=t), x(n, m, dtype=t))),
    "argmax": (lambda a: a.argmax(-1), lambda m, n, t: (x(m, n, dtype=t),)),
    "variance": (lambda a: torch.var_mean(a, -1), lambda m, n, t: (x(m, n, dtype=t),)),
}  # fmt: skip
for _name, (_function, _make) in SMOKE.items():
    for _dtype in (torch.float32, torch.bfloat16):

        def _smoke(function: Any = _function, make: Any = _make, dtype: Any = _dtype) -> str:
            shapes = ((64, 96), (3, 1000), (1024, 17), (5, 70000), (8192, 64), (1, 4096), (2, 3))
            return compare(function, *[make(m, n, dtype) for m, n in shapes])

        check("smoke", f"{_name} {str(_dtype).removeprefix('torch.')}")(_smoke)


# behaviour (SPEC M13) -----------------------------------------------------------------------------------------------------


def with_gradients(function: Callable[..., Tensor], make: Callable[[], tuple[Tensor, ...]]) -> str:
    call = compiled(function)
    args = make()
    results = []
    for run_, inputs in ((function, wide(args)), (function, args), (call, args)):
        inputs = tuple(i.detach().clone().requires_grad_(i.is_floating_point()) for i in inputs)
        out = run_(*inputs)
        cotangent = torch.randn(out.shape, generator=torch.Generator().manual_seed(1)).to(out.device, out.dtype)
        results.append((out.detach(), torch.autograd.grad(out, [i for i in inputs if i.requires_grad], cotangent)))
    agree(results[2], results[1], results[0])
    return account()


@check("behaviour", "softmax 2x1024, gradients")
def _() -> str:
    return with_gradients(lambda a: torch.softmax(a, -1), lambda: (x(2, 1024),))


@check("behaviour", "layer norm, gradients")
def _() -> str:
    return with_gradients(lambda a, w, b: F.layer_norm(a, (1024,), w, b), lambda: (x(64, 1024), x(1024), x(1024)))


@check("behaviour", "matmul and its epilogue")
def _() -> str:
    return compare(lambda a, b: torch.relu(a @ b), (x(512, 512), x(512, 512)), (x(64, 256), x(256, 96)))


@check("behaviour", "row sum times product, in place")
def _() -> str:
    return compare(lambda a, y: a.sum(-1, keepdim=True) * (y @ y), (x(256, 256), x(256, 256)))


@check("behaviour", "batch norm training, gradients and statistics")
def _() -> str:
    eager = nn.BatchNorm2d(3).cuda()
    mine = nn.BatchNorm2d(3).cuda()
    call = torch.compile(mine, backend="polytile", dynamic=True)
    for size in (16, 20):
        data = x(4, 3, size, size)
        first, second = data.clone().requires_grad_(), data.clone().requires_grad_()
        out, theirs = call(second), eager(first)
        torch.testing.assert_close(out, theirs, rtol=1e-4, atol=1e-4)
        out.sin().sum().backward()
        theirs.sin().sum().backward()
        torch.testing.assert_close(second.grad, first.grad, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(mine.running_mean, eager.running_mean)
    torch.testing.assert_close(mine.running_var, eager.running_var)
    return account()


@check("behaviour", "transformer block with dropout, eager's stream")
def _() -> str:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.linear = nn.LayerNorm(256), nn.LayerNorm(256), nn.Linear(256, 256)

        def forward(self, a: Tensor) -> Tensor:
            return self.second(a + F.dropout(self.linear(self.first(a)), 0.1, self.training))

    block = Block().cuda()
    call = torch.compile(block, backend="polytile", dynamic=True)
    data = x(8, 32, 256)
    torch.manual_seed(5)
    theirs = block(data)
    torch.manual_seed(5)
    mine = call(data)
    torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)
    return account()


@check("behaviour", "dropout from the counter-based stream drops as often as asked")
def _() -> str:
    call = compiled(lambda a: F.dropout(a, 0.25, True), random="philox")
    kept = (call(torch.ones(1000, 1000, device="cuda")) != 0).float().mean().item()
    assert abs(kept - 0.75) < 0.005, kept
    return account()


@check("behaviour", "split scan over 10x3x352x352")
def _() -> str:
    return compare(lambda a: a.cumsum(0) + a.view(-1).cumsum(0).view(a.shape), (x(10, 3, 352, 352),))


@check("behaviour", "sort, gather, scatter")
def _() -> str:
    def f(a: Tensor, i: Tensor) -> Any:
        return a.sort(-1).values, a.gather(1, i), torch.zeros_like(a).scatter_add(1, i, a)

    index = torch.randint(0, 64, (32, 64), device="cuda")
    return compare(f, (x(32, 64), index))


@check("behaviour", "embedding and its gradient")
def _() -> str:
    index = torch.randint(0, 100, (8, 33), device="cuda")
    return with_gradients(lambda w: F.embedding(index, w).sin(), lambda: (x(100, 64),))


@check("behaviour", "same argument many times, in-place update")
def _() -> str:
    def f(a: Tensor) -> Tensor:
        a.add_(1)
        return a * a + a

    call = compiled(f)
    first, second = x(100, 30), None
    second = first.clone()
    agree(call(first), f(second))
    agree(first, second)
    return account()


# machinery ------------------------------------------------------------------------------------------------------------------


@check("machinery", "a stream of one's own")
def _() -> str:
    call = compiled(lambda a: torch.softmax(a * 2, -1))
    data = x(4096, 4096)
    call(data)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        data.mul_(3)
        mine = call(data)
    torch.cuda.current_stream().wait_stream(stream)
    agree(mine, torch.softmax(data * 2, -1))
    return ""


@check("machinery", "recorded in a CUDA graph, warm and cold")
def _() -> str:
    for warm in (True, False):
        torch._dynamo.reset()
        call = compiled(lambda a: torch.softmax(a, -1).sum(0) + a.sum())
        data = x(64, 1000)
        if warm:
            call(data)
        else:
            call(x(64, 3))  # compiled, but this regime is new while recording
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = call(data)
        data.copy_(x(64, 1000))
        graph.replay()
        agree(
            out,
            torch.softmax(data, -1).sum(0) + data.sum(),
            torch.softmax(data.double(), -1).sum(0) + data.double().sum(),
        )
    return ""


@check("machinery", "threads share one kernel")
def _() -> str:
    call = compiled(lambda a: torch.softmax(a, -1))
    call(x(64, 100))
    wrong: list[str] = []

    def work(seed: int) -> None:
        try:
            data = torch.randn(64, 100 + 8 * seed, device="cuda")
            for _ in range(20):
                agree(call(data), torch.softmax(data, -1))
        except BaseException as error:
            wrong.append(f"{type(error).__name__}: {error}")

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong, wrong[0]
    return ""


@check("machinery", 'stall "never" serves at once and settles')
def _() -> str:
    call = compiled(lambda a: F.silu(torch.softmax(a * 1.5, -1)), stall="never")
    data = x(300, 777)
    began = time.monotonic()
    first = call(data)
    torch.cuda.synchronize()
    took = time.monotonic() - began
    agree(first, F.silu(torch.softmax(data * 1.5, -1)), F.silu(torch.softmax(data.double() * 1.5, -1)))
    kernel = polytile.compiler.compiled_programs()[-1].multikernels[0]
    for _ in range(200):
        agree(call(data), first, first)
        if kernel.decisions:
            break
        time.sleep(0.1)
    assert kernel.decisions, "it never settled"
    return f"first call {took:.2f} s, then {kernel.decisions[-1].candidate}"


@check("machinery", "compile_ahead")
def _() -> str:
    call = polytile.compile(lambda a: torch.softmax(a * 1.25, -1), compile_ahead={"s1": [500, 3000]})
    call(x(64, 96))
    time.sleep(6)
    before = polytile.counters["compiler_runs"]
    call(x(64, 3000))
    return f"{polytile.counters['compiler_runs'] - before} compilers at the call"


@check("machinery", "numbers on the host, and graphs of two devices")
def _() -> str:
    number = torch.tensor(2.5)
    said = compare(lambda a, b: a * b + 1, (x(64, 32), number))
    call = compiled(lambda a, b: (a * 2, b * 3, a.cpu() + b))
    a, b = x(64, 32), torch.randn(64, 32)
    agree(call(a, b), (a * 2, b * 3, a.cpu() + b))
    return said


@check("machinery", "an index out of range is told")
def _() -> str:
    call = compiled(lambda a, i: a[i] + 1)
    data, bad = x(100, 8), torch.tensor([1, 2, 300], device="cuda")
    call(data, torch.tensor([1, 2, 3], device="cuda"))
    try:
        call(data, bad)
        torch.cuda.synchronize()
        call(data, torch.tensor([1, 2, 3], device="cuda"))
    except IndexError as error:
        return str(error)[:100]
    raise AssertionError("nobody told")


@check("machinery", "misaligned and odd-strided arguments")
def _() -> str:
    base = x(1, 64 * 1000 + 1).view(-1)
    call = compiled(lambda a: torch.softmax(a, -1))
    for data in (base[:-1].view(64, 1000), base[1:].view(64, 1000), x(64, 1003)[:, :1000], x(1000, 64).t()):
        agree(call(data), torch.softmax(data, -1), torch.softmax(data.double(), -1))
    return account()


@check("machinery", "positions beyond 32 bits")
def _() -> str:
    call = compiled(lambda a: a + 1)
    data = torch.zeros(3, (1 << 30) + 64, dtype=torch.int8, device="cuda")
    out = call(data)
    assert bool((out == 1).all())
    return account()


@check("machinery", "no memory for measuring")
def _() -> str:
    call = compiled(lambda a: torch.softmax(a, -1))
    call(x(2, 64))
    data = x(2048, 8192)
    free, _ = torch.cuda.mem_get_info()
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info()
    hog = torch.empty(free - (120 << 20), dtype=torch.uint8, device="cuda")
    try:
        out = call(data)
        said = account()
    finally:
        del hog
        torch.cuda.empty_cache()
    agree(out, torch.softmax(data, -1))
    return said


@check("machinery", "a warm process benchmarks and compiles nothing")
def _() -> str:
    script = (
        "import torch, polytile\n"
        "f = torch.compile(lambda a: torch.softmax(a * 1.75, -1), backend='polytile', dynamic=True)\n"
        "f(torch.randn(64, 500, device='cuda'))\n"
        "print(polytile.counters['candidates_benchmarked'], polytile.counters['compiler_runs'])"
    )
    said = []
    for _ in range(2):
        environment = {**os.environ, "PYTHONPATH": f"{ROOT / 'src'}"}
        done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=environment)
        assert done.returncode == 0, done.stderr[-500:]
        said.append(done.stdout.strip())
    assert said[1] == "0 0", said
    return f"{said}"


@check("machinery", "host time of a launch")
def _() -> str:
    from benchmarks.gpu import host

    return str(host.run())


# lowerings ------------------------------------------------------------------------------------------------------------------


def _suite(*paths: str) -> str:
    command = [sys.executable, "-m", "pytest", "-q", "-x" if os.environ.get("GPU_CHECK_FIRST") else "-q", "--tb=line", "-n",
               os.environ.get("GPU_CHECK_WORKERS", "8"), *paths, "-p", "no:cacheprovider"]  # fmt: skip
    environment = {**os.environ, "POLYTILE_TEST_DEVICE": "cuda", "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    out = os.environ.get("OUT")
    if out:
        Path(out, "lowerings.txt").write_text(done.stdout + done.stderr)
    lines = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    for line in lines[:60]:
        print("     " + line[:300])
    tail = done.stdout.strip().splitlines()[-1] if done.stdout.strip() else done.stderr[-300:]
    assert done.returncode == 0, tail
    return tail


@check("lowerings", "tests/frontend on the device")
def _() -> str:
    return _suite("tests/frontend")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("parts", nargs="*", default=list(CHECKS))
    parser.add_argument("--seconds", type=float, default=400)
    given = parser.parse_args()
    logging.basicConfig(level=logging.WARNING)
    if not torch.cuda.is_available():
        raise SystemExit("this script needs an NVIDIA GPU; this process sees none.")
    deadline = time.monotonic() + given.seconds
    for part in given.parts:
        run(part, deadline)
    print(f"{len(failures)} failed: {'; '.join(failures)}" if failures else "all well")


if __name__ == "__main__":
    main()
