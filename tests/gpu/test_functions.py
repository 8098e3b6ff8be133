"""Generated loops on a GPU against eager: one dynamic compile of each function, at shapes of every kind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

import polytile
from polytile.dispatch.multikernel import MultiKernel
from polytile.runtime.cuda import seeds
from tests.gpu.comparing import agree, compare, compiled, data, rejected, with_gradients

pytestmark = pytest.mark.gpu

SHAPES = ((64, 96), (3, 1000), (1024, 17), (5, 70000), (8192, 64), (1, 4096), (0, 4), (2, 3))
LONG = ((300, 12000), (9, 20001), (70, 65536))
"""Rows that clusters may hold."""
Make = Callable[[int, int, torch.dtype], tuple[Any, ...]]


def one(m: int, n: int, dtype: torch.dtype) -> tuple[Any, ...]:
    return (data(m, n, dtype=dtype),)


def weighted(m: int, n: int, dtype: torch.dtype) -> tuple[Any, ...]:
    return data(m, n, dtype=dtype), data(n, dtype=dtype), data(n, dtype=dtype)


def turned(m: int, n: int, dtype: torch.dtype) -> tuple[Any, ...]:
    return data(m, n, dtype=dtype), data(n, m, dtype=dtype)


FUNCTIONS: dict[str, tuple[Callable[..., Any], Make]] = {
    "pointwise": (lambda a: F.gelu(a) * a + 1, one),
    "softmax": (lambda a: torch.softmax(a, -1), one),
    "layer norm": (lambda a, w, b: F.layer_norm(a, (a.shape[-1],), w, b), weighted),
    "column sum": (lambda a: a.sum(0), one),
    "row sum": (lambda a: a.sum(-1), one),
    "cumsum": (lambda a: a.cumsum(-1), one),
    "cumsum down the columns": (lambda a: a.cumsum(0), one),
    "transpose add": (lambda a, b: a + b.t(), turned),
    "variance": (lambda a: torch.var_mean(a, -1), one),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_function_at_many_shapes(name: str, dtype: torch.dtype) -> None:
    function, make = FUNCTIONS[name]
    compare(function, *[make(m, n, dtype) for m, n in SHAPES])


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
def test_8_bit_floats_are_converted_as_in_eager(dtype: torch.dtype) -> None:
    """Every number of 16 bits, those beyond the type among them, and rows scaled as before a product of such floats."""
    every = torch.arange(1 << 16, dtype=torch.int32, device="cuda").to(torch.int16).view(torch.bfloat16)
    to, back = compiled(lambda a: a.to(dtype)), compiled(lambda a: a.float() * 2)
    torch.testing.assert_close(to(every).float(), every.to(dtype).float(), rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(back(every.to(dtype)), every.to(dtype).float() * 2, rtol=0, atol=0, equal_nan=True)
    scaled = compiled(lambda a, s: (F.rms_norm(a, (a.shape[-1],)) / s).to(dtype))
    for m, n in SHAPES[:6]:
        a, s = data(m, n, dtype=torch.bfloat16), torch.tensor(0.01, device="cuda")
        got, want = scaled(a, s), (F.rms_norm(a.float(), (n,)) / s).to(dtype)
        torch.testing.assert_close(got.float(), want.float(), rtol=0.26, atol=0.01)
        assert got.dtype == dtype and ((got.float() - want.float()).abs() > 0.02 * want.float().abs()).float().mean() < 0.2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_what_an_integer_type_does_not_hold_becomes_what_eager_makes_of_it(dtype: torch.dtype) -> None:
    wide = torch.tensor([-1.5, 127.9, 128.0, 255.9, 256.0, 40000.0, 65536.0, 2.0**31, 3e9, -3e9, 1e18], device="cuda")
    for to in (torch.uint8, torch.int32, torch.int64):
        call = compiled(lambda a, to=to: a.to(to))
        for a in (wide.to(dtype), wide.to(dtype).repeat(9).flip(0)):
            assert torch.equal(call(a), a.to(to)), f"{dtype} to {to}"
        assert not rejected(), rejected()


ALONE: dict[str, Callable[[Tensor], Any]] = {
    "column sum": lambda a: a.sum(0),
    "row mean": lambda a: a.mean(-1),
    "cumsum": lambda a: a.cumsum(-1),
    "a transposed copy": lambda a: a.t().contiguous(),
    "a part": lambda a: a[1:, ::2].amax(1),
    "columns put together": lambda a: torch.cat([a, a], 1),
}


def _latest() -> Sequence[MultiKernel]:
    return polytile.compiler.programs.compiled_programs()[-1].multikernels


@pytest.mark.parametrize("name", ALONE)
def test_the_librarys_own_operator_runs_where_it_is_forced(name: str) -> None:
    call = compiled(ALONE[name], force="aten", persist=False)
    for m, n in SHAPES[:5]:
        x = data(m, n)
        assert torch.equal(call(x), ALONE[name](x)), "eager's own"
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            recorded = call(x)
        graph.replay()
        assert torch.equal(recorded, ALONE[name](x))
    assert {d.candidate for kernel in _latest() for d in kernel.decisions} == {"aten"}


def test_a_single_operator_is_timed_beside_generated_kernels() -> None:
    call, x = compiled(lambda a: a.sum(0), persist=False), data(64, 131072)
    agree(call(x), x.sum(0), x.double().sum(0))
    (decision,) = [d for kernel in _latest() for d in kernel.decisions]
    timed = {standing.candidate for standing in decision.standings if standing.seconds == standing.seconds}
    assert "aten" in timed and len(timed) > 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_positions_of_the_largest(dtype: torch.dtype) -> None:
    compare(lambda a: a.argmax(-1), *[one(m, n, dtype) for m, n in SHAPES if m])


def test_softmax_and_its_gradient() -> None:
    with_gradients(lambda a: torch.softmax(a, -1), data(2, 1024))


def test_layer_norm_and_its_gradients() -> None:
    with_gradients(lambda a, w, b: F.layer_norm(a, (1024,), w, b), data(64, 1024), data(1024), data(1024))


def test_an_embedding_and_its_gradient() -> None:
    index = torch.randint(0, 100, (8, 33), device="cuda")
    with_gradients(lambda w: F.embedding(index, w).sin(), data(100, 64))


def norm_gradients(g: Tensor, x: Tensor, w: Tensor, mean: Tensor, rstd: Tensor) -> Any:
    return torch.ops.aten.native_layer_norm_backward(g, x, [x.shape[-1]], mean, rstd, w, w, [True, True, True])


def of_a_norm(m: int, n: int, dtype: torch.dtype) -> tuple[Any, ...]:
    x = data(m, n, dtype=dtype)
    mean, rstd = x.float().mean(-1, keepdim=True), x.float().var(-1, keepdim=True, correction=0).add(1e-5).rsqrt()
    return data(m, n, dtype=dtype), x, data(n, dtype=dtype), mean, rstd


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_gradients_of_a_norm_at_many_shapes(dtype: torch.dtype) -> None:
    compare(norm_gradients, *[of_a_norm(m, n, dtype) for m, n in (*SHAPES, *LONG) if m])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_clusters_that_add_up_columns_are_right(dtype: torch.dtype) -> None:
    """Forced: whether one is among the candidates that are timed depends on how much time there is, beside other programs too."""
    if torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("clusters are of compute capability 9.0")
    compare(norm_gradients, *[of_a_norm(m, n, dtype) for m, n in LONG], persist=False, force="*=column_reduction*splits=*")
    kernels = [kernel for program in polytile.compiler.programs.compiled_programs() for kernel in program.multikernels]
    chosen = {decision.candidate for kernel in kernels for decision in kernel.decisions}
    assert any(name.startswith("column_reduction") and "splits=" in name for name in chosen), sorted(chosen)


def test_numbers_of_the_host_go_along_with_calls_and_can_be_recorded() -> None:
    class Norm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.scale, self.epsilon = 3.0, 1e-3

        def forward(self, x: Tensor) -> Tensor:
            return x * (x.square().mean(-1, keepdim=True) + self.epsilon).rsqrt() * self.scale

    norm, x = Norm(), data(64, 500)
    call = torch.compile(norm, backend="polytile", dynamic=True)
    with torch.no_grad():
        for scale in (3.0, 0.5, 7.25):
            norm.scale = scale
            torch.testing.assert_close(call(x), norm(x))
        graph, stream = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            call(x)
        torch.cuda.current_stream().wait_stream(stream)
        with torch.cuda.graph(graph):
            recorded = call(x)
        x.copy_(data(64, 500))
        graph.replay()
        torch.testing.assert_close(recorded, norm(x))


def test_few_and_many_rows_added_into_a_table_of_16_bits() -> None:
    def gradient(g: Tensor, index: Tensor) -> Tensor:
        return torch.ops.aten.embedding_dense_backward(g, index, 500, 3, False)

    calls = [(data(m, n, dtype=torch.bfloat16), torch.randint(0, 500, (m,), device="cuda")) for m, n in SHAPES]
    compare(gradient, *calls)


@pytest.mark.parametrize("kind", ["atomic", "first_occurrence", "owner_computes", "sorted"])
def test_rows_added_into_a_table_in_every_way(kind: str) -> None:
    def gradient(g: Tensor, index: Tensor) -> Tensor:
        return torch.ops.aten.embedding_dense_backward(g, index, 300, 3, False)

    calls = []
    for points, columns in ((5, 1000), (700, 64), (1000, 1600)):
        index = torch.randint(0, 300, (points,), device="cuda")
        index[points // 4 : points // 2] = 7
        calls.append((data(points, columns), index))
    compare(gradient, *calls, force=f"{kind} *")
    kernels = [kernel for program in polytile.compiler.programs.compiled_programs() for kernel in program.multikernels]
    assert {d.candidate.partition(" ")[0] for kernel in kernels for d in kernel.decisions} == {kind}


def test_batch_norm_in_training_with_gradients_and_statistics() -> None:
    eager, mine = nn.BatchNorm2d(3).cuda(), nn.BatchNorm2d(3).cuda()
    call = torch.compile(mine, backend="polytile", dynamic=True)
    for size in (16, 20):
        first = data(4, 3, size, size).requires_grad_()
        second = first.detach().clone().requires_grad_()
        theirs, out = eager(first), call(second)
        torch.testing.assert_close(out, theirs, rtol=1e-4, atol=1e-4)
        theirs.sin().sum().backward()
        out.sin().sum().backward()
        torch.testing.assert_close(second.grad, first.grad, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(mine.running_mean, eager.running_mean)
    torch.testing.assert_close(mine.running_var, eager.running_var)


@pytest.mark.skipif(
    torch.cuda.is_available() and torch.cuda.get_device_capability() < (9, 0), reason="devices have clusters from 9.0 on"
)
@pytest.mark.parametrize("splits", [2, 4, 8, 16])
@pytest.mark.parametrize("name", ["softmax", "layer norm"])
def test_programs_of_a_cluster_hold_rows_together(name: str, splits: int) -> None:
    (function, make), length = FUNCTIONS[name], splits * 4096
    calls = [make(37, n, torch.bfloat16) for n in (length, length - 16, length - 77)]
    compare(function, *calls, force=f"cluster*splits?{splits} *")
    kernels = [kernel for program in polytile.compiler.programs.compiled_programs() for kernel in program.multikernels]
    assert {d.candidate.partition(" ")[0] for kernel in kernels for d in kernel.decisions} == {"cluster"}


@pytest.mark.skipif(
    torch.cuda.is_available() and torch.cuda.get_device_capability() < (9, 0), reason="devices have clusters from 9.0 on"
)
@pytest.mark.parametrize("splits", [2, 4, 8, 16])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_programs_of_a_cluster_hold_columns_together(dtype: torch.dtype, splits: int) -> None:
    def standard(x: torch.Tensor) -> torch.Tensor:
        return (x - x.mean(0)) * torch.rsqrt(x.var(0, correction=0) + 1e-5)

    rows = splits * 512
    for function in (standard, lambda x: torch.softmax(x, 0)):
        calls = [(data(m, n, dtype=dtype),) for m, n in ((rows, 96), (rows - 77, 100), (rows - 1, 33))]
        compare(function, *calls, force=f"cluster*splits?{splits} *")
        kernels = [kernel for program in polytile.compiler.programs.compiled_programs() for kernel in program.multikernels]
        assert {d.candidate.partition(" ")[0] for kernel in kernels for d in kernel.decisions} == {"cluster"}


def test_what_follows_a_matmul_and_what_goes_before() -> None:
    compare(
        lambda a, b: torch.relu(a @ b),
        (data(512, 512), data(512, 512)),
        (data(64, 256), data(256, 96)),
        generated=False,
    )
    compare(lambda a, y: a.sum(-1, keepdim=True) * (y @ y), (data(256, 256), data(256, 256)), generated=False)


def test_dropout_draws_what_eager_draws() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.linear = nn.LayerNorm(256), nn.LayerNorm(256), nn.Linear(256, 256)

        def forward(self, a: Tensor) -> Tensor:
            return self.second(a + F.dropout(self.linear(self.first(a)), 0.1, self.training))

    block = Block().cuda()
    call, x = torch.compile(block, backend="polytile", dynamic=True), data(8, 32, 256)
    torch.manual_seed(5)
    theirs = block(x)
    torch.manual_seed(5)
    torch.testing.assert_close(call(x), theirs, rtol=1e-4, atol=1e-4)


def test_dropout_from_the_counter_drops_as_often_as_asked() -> None:
    call = compiled(lambda a: F.dropout(a, 0.25, True), random="philox")
    kept = (call(torch.ones(1000, 1000, device="cuda")) != 0).float().mean().item()
    assert abs(kept - 0.75) < 0.005


def test_the_counter_s_seed_follows_manual_seed_and_many_share_a_kernel() -> None:
    call, ones = compiled(lambda a: F.dropout(a, 0.5, True), random="philox"), torch.ones(64, 64, device="cuda")

    def drawn(seed: int) -> Tensor:
        torch.manual_seed(seed)
        torch.randn(1000, device="cuda")
        return torch.stack([call(ones), call(ones)])

    first = drawn(3)
    assert torch.equal(drawn(3), first)
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(drawn(4), first)
    one, two = (seeds.next_seed(ones.device) for _ in range(2))
    assert one.untyped_storage().data_ptr() == two.untyped_storage().data_ptr()


def test_every_replay_of_a_captured_dropout_draws_anew() -> None:
    call, ones = compiled(lambda a: F.dropout(a, 0.5, True), random="philox"), torch.ones(64, 64, device="cuda")
    call(ones)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = [call(ones), call(ones)]

    def replayed(seed: int | None = None) -> Tensor:
        if seed is not None:
            torch.manual_seed(seed)
        graph.replay()
        return torch.stack(results)

    first, second = replayed(3), replayed()
    assert not torch.equal(first[0], first[1])
    assert not torch.equal(first, second)
    assert torch.equal(replayed(3), first)
    assert not torch.equal(call(ones), call(ones))


def test_a_checkpoint_drops_the_same_again_and_its_kernels_are_generated() -> None:
    def block(a: Tensor) -> Tensor:
        return F.dropout(a.sin(), 0.5, True) * 2

    call = compiled(lambda a: checkpoint(block, a, use_reentrant=False))
    for shape in ((100, 200), (33, 7)):
        x = torch.ones(shape, device="cuda", requires_grad=True)
        out = call(x)
        out.sum().backward()
        assert x.grad is not None and torch.equal(x.grad != 0, out != 0) and 0.3 < float((out != 0).float().mean()) < 0.7
    assert polytile.counters["kernels_generated"] >= 2


def test_gradients_of_dropout_from_the_counter_belong_to_what_was_kept() -> None:
    call = compiled(lambda a: F.dropout(a, 0.5, True), random="philox")
    x = torch.ones(100, 200, device="cuda", requires_grad=True)
    out = call(x)
    out.sum().backward()
    assert x.grad is not None
    assert torch.equal(out.detach(), x.grad)


def test_scans_along_two_axes_of_a_large_tensor() -> None:
    compare(lambda a: a.cumsum(0) + a.view(-1).cumsum(0).view(a.shape), (data(10, 3, 352, 352),))


def test_sorting_gathering_and_scattering() -> None:
    def function(a: Tensor, i: Tensor) -> Any:
        return a.sort(-1).values, a.gather(1, i), torch.zeros_like(a).scatter_add(1, i, a)

    compare(function, (data(32, 64), torch.randint(0, 64, (32, 64), device="cuda")), generated=False)


def test_an_argument_changed_in_place() -> None:
    def function(a: Tensor) -> Tensor:
        a.add_(1)
        return a * a + a

    first = data(100, 30)
    second = first.clone()
    agree(compiled(function)(first), function(second))
    agree(first, second)


def test_numbers_on_the_host_and_tensors_of_two_devices() -> None:
    compare(lambda a, b: a * b + 1, (data(64, 32), torch.tensor(2.5)), generated=False)

    def function(a: Tensor, i: Tensor) -> Tensor:
        a = a.clone()
        a[:, i] = 0
        a[a > 1] = 1.5
        return a

    compare(function, (data(4, 6), torch.tensor([0, 3], device="cuda")), generated=False)
    a, b = data(64, 32), torch.randn(64, 32)
    agree(compiled(lambda a, b: (a * 2, b * 3, a.cpu() + b))(a, b), (a * 2, b * 3, a.cpu() + b))


def test_misaligned_and_oddly_strided_arguments() -> None:
    base = data(64 * 1000 + 1)
    views = (base[:-1].view(64, 1000), base[1:].view(64, 1000), data(64, 1003)[:, :1000], data(1000, 64).t())
    compare(lambda a: torch.softmax(a, -1), *[(view,) for view in views])


def test_positions_beyond_32_bits() -> None:
    out = compiled(lambda a: a + 1)(torch.zeros(3, (1 << 30) + 64, dtype=torch.int8, device="cuda"))
    assert bool((out == 1).all())
