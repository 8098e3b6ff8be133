"""Packed copies of weights: whatever changes a weight, and however, results are those of the weight as it is; copies are made
once, shared, bounded, and go when the weight goes."""

from __future__ import annotations

import contextlib
import copy
import gc
import logging
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import polytile
from polytile.facts import Size
from polytile.ir.dtypes import FLOAT8
from polytile.matmul.cpp import panels
from polytile.runtime import weights
from tests.behaviour.helpers import check, compiled, decisions, multikernels

K, N = 200, 260
DTYPES = {torch.float32: 1e-4, torch.bfloat16: 2e-2, torch.float64: 1e-10}


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    weights.forget_weights()
    yield
    weights.forget_weights()


@pytest.fixture(autouse=True)
def forced_choices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever can read panels does: which candidate is the fastest here is not at stake."""
    monkeypatch.setenv("POLYTILE_FORCE", "tile_prepacked*,inline tile_prepacked*")
    monkeypatch.setenv("POLYTILE_TUNE", "off")


def linear(dtype: torch.dtype = torch.float32, bias: bool = False) -> nn.Linear:
    torch.manual_seed(0)
    return nn.Linear(K, N, bias=bias, dtype=dtype)


def run(module: nn.Module, **options: Any) -> Callable[..., Any]:
    return torch.compile(module, backend="polytile", dynamic=True, fullgraph=True, options=options)


def made() -> int:
    """Copies made since the test began."""
    return int(polytile.counters["weights_packed"])


class Scaled(nn.Module):
    """A product, and a vector of the weight's scales that a loop computes from these alone."""

    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(K, N), requires_grad=False)
        self.register_buffer("scale", torch.rand(N).bfloat16())

    def forward(self, x: Tensor) -> Tensor:
        return (x @ self.weight) @ torch.outer(self.scale.float(), 1 / (1 + self.scale.float()))


@pytest.mark.parametrize("wrapper", ["python", "cpp", "fx"])
def test_what_a_loop_computes_from_a_constant_weight_is_kept_until_that_changes(wrapper: str) -> None:
    module, x = Scaled(), torch.randn(5, K)
    call = run(module, wrapper=wrapper)

    def assert_close() -> None:
        torch.testing.assert_close(call(x), module(x), rtol=1e-4, atol=1e-2)

    assert_close()
    kept = [row for row in polytile.explain(call, x).weights if row.dtype == "bfloat16"]
    assert kept and all(row.bytes and row.made == 1 for row in kept)
    before = made()
    assert_close()
    assert made() == before
    module.scale.mul_(3)
    assert_close()
    module.scale.data.mul_(2)  # which nothing counts: its bytes tell
    assert_close()
    assert_close()


class Normalised(nn.Module):
    """Once the scale that a loop computes from the variance is dead, a mean of the same size is stored, below the peak."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(N).eval()
        self.first, self.second, self.wide = (nn.Linear(N, n, bias=False) for n in (N, N, 4 * N))
        nn.init.uniform_(self.norm.get_buffer("running_var"), 0.5, 2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.first(self.norm(x).relu())
        gate: Tensor = self.second(y.mean(0, keepdim=True)).sigmoid()
        wide: Tensor = self.wide(y * gate)
        return wide


@pytest.mark.parametrize("wrapper", ["python", "cpp", "fx"])
def test_no_temporary_takes_the_memory_of_what_is_kept_between_calls(wrapper: str) -> None:
    module, x = Normalised(), torch.randn(5, N)
    with torch.no_grad():
        call = run(module, wrapper=wrapper)
        for _ in range(3):
            torch.testing.assert_close(call(x), module(x), rtol=1e-4, atol=1e-4)
    assert any(row.bytes == 4 * N for row in polytile.explain(call, x).weights), "the scale is kept"


def test_what_a_program_returns_or_computes_from_others_too_is_not_kept() -> None:
    class Returned(Scaled):
        def forward(self, x: Tensor) -> Any:
            wide = self.scale.float() * 2
            return wide, x[0, 0] + self.scale.float()

    module, x = Returned(), torch.randn(5, K)
    call = run(module)
    first, _ = call(x)
    first.zero_()
    torch.testing.assert_close(call(x), module(x))
    assert made() == 0 and not polytile.explain(call, x).weights


@pytest.mark.parametrize("limit", [0, 1])
def test_computed_weights_count_among_what_the_limit_is_for(limit: int) -> None:
    module, x = Scaled(), torch.randn(5, K)
    module.register_buffer("scale", torch.rand(2000).bfloat16())
    module.weight = nn.Parameter(torch.randn(K, 2000), requires_grad=False)
    call = run(module, packed_weights_mib=limit)
    torch.testing.assert_close(call(x), module(x), rtol=1e-4, atol=1e-1)
    torch.testing.assert_close(call(x), module(x), rtol=1e-4, atol=1e-1)
    assert weights.packed_bytes() <= limit << 20


def assert_right(call: Callable[[Tensor], Tensor], module: nn.Module, rows: int = 5, tolerance: float = 1e-4) -> None:
    x = torch.randn(rows, K, dtype=next(module.parameters()).dtype)
    torch.testing.assert_close(call(x), module(x), rtol=tolerance, atol=tolerance)


def used() -> set[bool]:
    """Whether what was decided on reads panels."""
    return {"tile_prepacked" in decision.candidate for decision in decisions()}


# results ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("dtype", "tolerance"), DTYPES.items())
@pytest.mark.parametrize("bias", [False, True])
def test_a_linear_layer_is_packed_once_for_all_sizes(dtype: torch.dtype, tolerance: float, bias: bool) -> None:
    module = linear(dtype, bias)
    call = run(module)
    with torch.no_grad():
        for rows in (2, 5, 40, 130, 5):
            assert_right(call, module, rows, tolerance)
    assert made() == 1 and used() == {True}
    assert {dict(decision.sizes)["packed"] for decision in decisions()} == {1}
    assert all(Size("packed", 1) in decision.regime.facts for decision in decisions())


def test_int8_weights_are_packed() -> None:
    class Quantised(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("weight", torch.randint(-128, 128, (K, N), dtype=torch.int8))
            self.register_buffer("scale", torch.rand(N) / 100)

        def forward(self, x: Tensor) -> Tensor:
            return torch._int_mm(x, self.weight).float() * self.scale

    module = Quantised()
    call, x = run(module), torch.randint(-128, 128, (20, K), dtype=torch.int8)
    torch.testing.assert_close(call(x), module(x))
    module.weight.copy_(module.weight.roll(1, 0))
    torch.testing.assert_close(call(x), module(x))
    assert made() >= 1 and used() == {True, False}  # once packed, once while the changed weight was watched


class EightBitFloats(nn.Module):
    """A scale for each output, as torchao writes it."""

    weight: Tensor
    scale: Tensor

    def __init__(self, stored: torch.dtype) -> None:
        super().__init__()
        self.register_buffer("weight", torch.randn(N, K).to(stored))
        self.register_buffer("scale", torch.rand(N, 1))

    def forward(self, x: Tensor) -> Tensor:
        return nn.functional.linear(x, (self.weight.to(self.scale.dtype) * self.scale).to(x.dtype))


@pytest.mark.parametrize("stored", FLOAT8, ids=str)
@pytest.mark.parametrize(("dtype", "nearness"), [(torch.float32, 1e-5), (torch.bfloat16, 1e-2)])
def test_weights_of_8_bit_floats_are_converted_and_packed_once(stored: torch.dtype, dtype: torch.dtype, nearness: float) -> None:
    module = EightBitFloats(stored)
    call = run(module)

    def check_result(rows: int) -> None:
        x = torch.randn(rows, K, dtype=dtype)
        exact = nn.functional.linear(x.double(), module.weight.double() * module.scale.double())
        assert (call(x) - exact).abs().max() <= nearness * exact.abs().max()

    for rows in (2, 5, 40, 130, 5):
        check_result(rows)
    assert made() == 1 and used() == {True} and not polytile.counters["library_calls"]
    module.scale.mul_(3)
    check_result(5)
    assert made() == 1
    module.weight.copy_(module.weight.roll(1, 0))
    check_result(5)


class Nibbles(nn.Module):
    """Two numbers a byte, the low half first, less `zero`; a scale for each group along k."""

    weight: Tensor
    scale: Tensor

    def __init__(self, zero: float = 8, group: int = 20) -> None:
        super().__init__()
        self.zero, self.group = zero, group
        self.register_buffer("weight", torch.randint(0, 256, (N, K // 2), dtype=torch.uint8))
        self.register_buffer("scale", torch.rand(N, K // group, 1))

    def forward(self, x: Tensor) -> Tensor:
        numbers = torch.stack([self.weight & 15, self.weight >> 4], -1).reshape(N, -1, self.group)
        return nn.functional.linear(x, ((numbers.to(x.dtype) - self.zero) * self.scale.to(x.dtype)).flatten(1))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_weights_of_four_bits_are_packed_once_and_scaled_as_their_scales_are(dtype: torch.dtype) -> None:
    module = Nibbles()
    call, x = run(module), torch.randn(20, K, dtype=dtype)

    def check_result() -> None:
        exact = module(x.double())
        assert (call(x) - exact).abs().max() <= (1e-5 if dtype == torch.float32 else 1e-2) * exact.abs().max()

    check_result()
    module.scale.mul_(3)
    check_result()
    products = [kernel for kernel in multikernels() if kernel.spec.family == "mm"]
    assert made() == 2 and {d.candidate.split()[0] for k in products for d in k.decisions} == {"tile_prepacked"}
    module.weight.copy_(module.weight.roll(1, 0))
    check_result()


@pytest.mark.parametrize(("group", "bits"), [(40, 4), (20, 8)])
def test_packed_weights_of_four_bits_take_half_a_byte_a_number_where_groups_are_of_whole_words(group: int, bits: int) -> None:
    module, x = Nibbles(group=group), torch.randn(20, K)
    call, exact = run(module), module(x.double())
    assert (call(x) - exact).abs().max() <= 1e-5 * exact.abs().max()
    (packed,) = [row.bytes for row in polytile.explain(call, x).weights if row.dtype == "uint8"]
    assert packed == -(-N // _lanes()) * _lanes() * K * bits // 8


@pytest.mark.parametrize(("zero", "kernels"), [(8, 1), (8.5, 2), (300, 2)])
def test_an_integer_that_all_numbers_are_less_is_packed_with_them(zero: float, kernels: int) -> None:
    """Kernels: the product, and of zeros where these are stored for themselves; the scales are computed once."""
    module, x = Nibbles(zero), torch.randn(20, K)
    call, exact = run(module), module(x.double())
    assert (call(x) - exact).abs().max() <= 1e-5 * exact.abs().max()
    assert len(polytile.explain(call, x).decisions) == kernels


class PackedByATen(nn.Module):
    """Numbers of 4 bits as ATen's own product takes them; group 3 of some columns has the scale 0."""

    weight: Tensor
    scales_and_zeros: Tensor

    def __init__(self, n: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        numbers, self.group = torch.randint(0, 16, (n, 256), dtype=torch.int32), 32
        scales_and_zeros = torch.randn(256 // self.group, n, 2)
        scales_and_zeros[3, 5:9, 0] = 0
        self.register_buffer("weight", torch._convert_weight_to_int4pack_for_cpu(numbers, 1))
        self.register_buffer("scales_and_zeros", scales_and_zeros.bfloat16())
        scales, zeros = self.scales_and_zeros.double().repeat_interleave(self.group, 0).unbind(-1)
        self.full = (numbers.t() - 8) * scales + zeros

    def forward(self, x: Tensor) -> Tensor:
        return torch._weight_int4pack_mm_for_cpu(x, self.weight, self.group, self.scales_and_zeros)


@pytest.mark.skipif(torch.backends.cpu.get_cpu_capability() != "AVX512", reason="ATen packs other panels")
@pytest.mark.parametrize(("columns", "packed"), [(128, 1), (80, 0)])
def test_weights_that_aten_has_packed_in_four_bits_are_packed_anew(columns: int, packed: int) -> None:
    """80 columns are no whole panels of ATen's: its own product."""
    module = PackedByATen(columns)
    call = run(module)
    for rows in (1, 7, 40):
        x = torch.randn(rows, 256, dtype=torch.bfloat16)
        exact = x.double() @ module.full
        assert (call(x) - exact).abs().max() <= 1e-2 * exact.abs().max()
    assert made() >= packed and bool(made()) == bool(packed)
    told = polytile.explain(call, x)
    assert [row.dtype for row in told.weights if row.dtype == "uint8"] == ["uint8"] * packed
    assert len({row.kernel for row in told.decisions}) == packed, "scales and zeros are computed once"


def test_weights_of_a_function_and_slices_of_weights_are_packed() -> None:
    weight = nn.Parameter(torch.randn(2 * N, K))

    def both(x: Tensor) -> Tensor:
        return x @ weight[:N].t() + x @ weight[N:].t()

    call, x = compiled(both), torch.randn(7, K)
    with torch.no_grad():
        torch.testing.assert_close(call(x), both(x), rtol=1e-4, atol=1e-4)
    assert made() == 2 and used() == {True}


def test_what_a_call_is_given_is_not_packed() -> None:
    def product(x: Tensor, w: Tensor) -> Tensor:
        return x @ w

    call, w = compiled(product), torch.randn(K, N)
    for _ in range(3):
        check(product, call, torch.randn(7, K), w)
    assert made() == 0


# changes ---------------------------------------------------------------------------------------------------------------


def by_optimizer(make: Callable[..., torch.optim.Optimizer], **how: Any) -> Callable[[nn.Linear], None]:
    def change(module: nn.Linear) -> None:
        optimizer = make([module.weight], lr=0.1, **how)
        module.weight.grad = torch.ones_like(module.weight)
        optimizer.step()

    return change


def in_place(module: nn.Linear) -> None:
    module.weight.neg_()


def through_a_view(module: nn.Linear) -> None:
    module.weight.t()[3, 5] = 7.0


def through_detach(module: nn.Linear) -> None:
    module.weight.detach()[0, 0] = 7.0


def through_data(module: nn.Linear) -> None:
    module.weight.data.mul_(2.0)


def other_data(module: nn.Linear) -> None:
    module.weight.data = module.weight.data * 2.0


def data_at_the_old_address(module: nn.Linear) -> None:
    for factor in (2.0, 3.0):  # the second may get the memory that the first has freed
        module.weight.data = module.weight.data * factor


def copied_from_a_state(module: nn.Linear) -> None:
    module.load_state_dict({"weight": torch.randn(N, K)})


def state_assigned(module: nn.Linear) -> None:
    module.load_state_dict({"weight": torch.randn(N, K)}, assign=True)


def new_parameter(module: nn.Linear) -> None:
    module.weight = nn.Parameter(torch.randn(N, K))


def set_to(module: nn.Linear) -> None:
    module.weight.set_(torch.randn(N, K))


def by_a_compiled_function(module: nn.Linear) -> None:
    def double(w: Tensor) -> None:
        w.mul_(2.0)

    compiled(double, force="")(module.weight)


def swapped(module: nn.Linear) -> None:
    torch.utils.swap_tensors(module.weight, nn.Parameter(torch.randn(N, K)))


CHANGES = [
    in_place, through_a_view, through_detach, through_data, other_data, data_at_the_old_address, copied_from_a_state,
    state_assigned, new_parameter, set_to, by_a_compiled_function, swapped,
]  # fmt: skip
OPTIMIZERS = {
    "sgd": by_optimizer(torch.optim.SGD, foreach=False),
    "sgd foreach": by_optimizer(torch.optim.SGD, foreach=True),
    "adam foreach": by_optimizer(torch.optim.Adam, foreach=True),
    "adamw fused": by_optimizer(torch.optim.AdamW, fused=True),
}


@pytest.mark.parametrize("change", [*CHANGES, *OPTIMIZERS.values()], ids=[*[c.__name__ for c in CHANGES], *OPTIMIZERS])
def test_results_are_those_of_the_weight_as_it_is(change: Callable[[nn.Linear], None]) -> None:
    module = linear()
    call = run(module)
    with torch.no_grad():
        for _ in range(3):
            for _ in range(4):
                assert_right(call, module)
            change(module)
        assert_right(call, module)
    assert made() >= 1


def test_a_write_that_is_not_counted_ends_the_trust_and_is_told(caplog: pytest.LogCaptureFixture) -> None:
    module = linear()
    call = run(module)
    with torch.no_grad(), caplog.at_level(logging.WARNING, "polytile"):
        assert_right(call, module)
        through_data(module)
        for _ in range(3):
            assert_right(call, module)
        in_place(module)
        for _ in range(3):
            assert_right(call, module)
    assert made() == 1 and "past PyTorch's count of writes" in caplog.text


def test_forgetting_makes_new_copies() -> None:
    module = linear()
    call, x = run(module), torch.randn(3, K)
    with torch.no_grad():
        call(x)
        module.weight.data[17, 3] += 1000.0  # one element, not counted: what the sample may miss
        polytile.forget_weights()
        torch.testing.assert_close(call(x), module(x))
    assert made() == 2


def test_a_weight_that_changes_each_time_is_soon_left_unpacked() -> None:
    module = linear()
    call = run(module)
    with torch.no_grad():
        for _ in range(20):
            assert_right(call, module)
            in_place(module)
        assert made() <= 2
        for _ in range(20):
            assert_right(call, module)
    assert made() <= 3 and used() == {True, False}


def test_training_packs_nothing_and_evaluation_between_epochs_does() -> None:
    torch.manual_seed(1)
    module = nn.Sequential(nn.Linear(K, N), nn.ReLU(), nn.Linear(N, K))
    eager = copy.deepcopy(module)
    call = run(module)
    optimizers = [torch.optim.SGD(m.parameters(), lr=0.01) for m in (module, eager)]
    for epoch in range(2):
        for _ in range(3):
            x = torch.randn(6, K)
            for run_one, optimizer in ((call, optimizers[0]), (eager, optimizers[1])):
                optimizer.zero_grad()
                run_one(x).square().sum().backward()
                optimizer.step()
        assert made() == 2 * epoch
        with torch.no_grad():
            for rows in (4, 9, 4):
                x = torch.randn(rows, K)
                torch.testing.assert_close(call(x), eager(x), rtol=1e-4, atol=1e-4)
    assert made() == 4


def test_gradients_of_frozen_weights_use_packed_copies() -> None:
    module = linear().requires_grad_(False)
    call = run(module)
    for _ in range(4):
        x = torch.randn(6, K, requires_grad=True)
        y = x.detach().clone().requires_grad_()
        call(x).square().sum().backward()
        module(y).square().sum().backward()
        torch.testing.assert_close(x.grad, y.grad, rtol=1e-4, atol=1e-4)
    assert made() == 2 and used() == {True, False}  # of both orientations, once seen unchanged


# who shares, and what lives ------------------------------------------------------------------------------------------------


def test_two_modules_share_a_graph_and_neither_s_copy() -> None:
    first, second = linear(), linear()
    with torch.no_grad():
        second.weight.mul_(-3.0)

    def through(module: nn.Linear, x: Tensor) -> Tensor:
        return module(x)

    call = compiled(through)
    with torch.no_grad():
        for _ in range(3):
            for module in (first, second):
                assert_right(lambda x, m=module: call(m, x), module)  # type: ignore[misc]
    assert made() == 2


def test_two_products_by_one_weight_share_its_copy() -> None:
    weight = nn.Parameter(torch.randn(K, N))

    def twice(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        return x @ weight, torch.relu(y @ weight)

    call, given = compiled(twice), (torch.randn(3, K), torch.randn(70, K))
    with torch.no_grad():
        torch.testing.assert_close(call(*given), twice(*given), rtol=1e-4, atol=1e-4)
    assert made() == 1 and weights.packed_bytes() == panels.size_of(K, N, torch.float32, _lanes())


def _lanes() -> int:
    from polytile.runtime import toolchain

    return toolchain.find().lanes


@pytest.mark.parametrize("compiled_first", [True, False])
def test_a_copy_goes_with_its_weight(compiled_first: bool) -> None:
    module = linear()
    call = run(module)
    with torch.no_grad():
        assert_right(call, module)
        assert weights.packed_bytes() > 0
        if compiled_first:
            del call
            torch._dynamo.reset()
            del module
        else:
            module.weight = nn.Parameter(torch.randn(2, 2))
        gc.collect()
    assert weights.packed_bytes() == 0


def test_views_keep_the_memory_and_so_the_copy() -> None:
    module = linear()
    call = run(module)
    with torch.no_grad():
        assert_right(call, module)
        view = module.weight[3:]
        del call, module
        torch._dynamo.reset()
        gc.collect()
        assert weights.packed_bytes() > 0
        del view
        gc.collect()
    assert weights.packed_bytes() == 0


def test_the_option_bounds_what_copies_take_and_explain_says_so() -> None:
    module = nn.Sequential(nn.Linear(512, 512, bias=False), nn.Linear(512, 384, bias=False))
    call, x = run(module, packed_weights_mib=1), torch.randn(3, 512)
    with torch.no_grad():
        torch.testing.assert_close(call(x), module(x))
        explanation = polytile.explain(call, x)
    assert made() == 1 and weights.packed_bytes() == 1 << 20
    assert [row.bytes for row in explanation.weights] == [1 << 20, 0]
    assert "512 × 512 float32: packed, 1.0 MiB" in str(explanation)
    assert "not packed: the option packed_weights_mib (1) leaves no room" in str(explanation)


def test_no_room_means_no_argument_either() -> None:
    module = linear()
    with torch.no_grad():
        assert "panels" not in polytile.explain(run(module, packed_weights_mib=0), torch.randn(3, K)).sources[0]
        assert "panels" in polytile.explain(run(module), torch.randn(4, K)).sources[0]


# weights whose count of writes says nothing ------------------------------------------------------------------------------


def lent_by_numpy(weight: Tensor) -> nn.Parameter:
    return nn.Parameter(torch.from_numpy(weight.numpy()))


def shared_with_processes(weight: Tensor) -> nn.Parameter:
    return nn.Parameter(weight.share_memory_())


def made_in_inference_mode(weight: Tensor) -> nn.Parameter:
    with torch.inference_mode():
        return nn.Parameter(weight.clone(), requires_grad=False)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lent_by_numpy, "its memory is not PyTorch's own"),
        (shared_with_processes, "other processes may write to it"),
        (made_in_inference_mode, "inference tensors do not count writes"),
    ],
)
def test_weights_that_others_may_write_to_are_not_packed(make: Callable[[Tensor], nn.Parameter], reason: str) -> None:
    module = linear()
    module.weight = make(torch.randn(N, K))
    call = run(module)
    with torch.inference_mode() if make is made_in_inference_mode else torch.no_grad():
        for _ in range(3):
            assert_right(call, module)
        (row,) = polytile.explain(call, torch.randn(5, K)).weights
    assert made() == 0 and row.reason == reason


def test_a_weight_that_another_tensor_shares_memory_with_is_not_packed() -> None:
    module, tied = linear(), linear()
    tied.weight.data = module.weight.data  # with a count of its own
    call = run(module)
    with torch.no_grad():
        assert_right(call, module)
        tied.weight[0, 0] = 1000.0
        assert_right(call, module)
    assert made() == 0


def test_inference_mode_packs_weights_made_outside() -> None:
    module = linear()
    call = run(module)
    with torch.inference_mode():
        assert_right(call, module)
        in_place(module)
        for _ in range(3):
            assert_right(call, module)
    assert made() == 2


# failures, threads, processes ---------------------------------------------------------------------------------------------


def test_a_copy_that_could_not_be_finished_is_never_used(monkeypatch: pytest.MonkeyPatch) -> None:
    module = linear()
    call, whole = run(module), panels.make

    def stops(matrix: Tensor, lanes: int, together: int, nibbles_from: int | None) -> Tensor:
        whole(matrix, lanes, together).zero_()
        raise KeyboardInterrupt

    monkeypatch.setattr(panels, "make", stops)
    with torch.no_grad():
        with contextlib.suppress(KeyboardInterrupt):
            call(torch.randn(5, K))
        assert weights.packed_bytes() == 0
        monkeypatch.setattr(panels, "make", whole)
        for _ in range(2):
            assert_right(call, module)


def test_without_memory_for_a_copy_the_weight_itself_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    module = linear()

    def refuses(*given: Any) -> Tensor:
        raise torch.OutOfMemoryError("no memory")

    monkeypatch.setattr(panels, "make", refuses)
    call = run(module)
    with torch.no_grad():
        assert_right(call, module)
        (row,) = polytile.explain(call, torch.randn(5, K)).weights
    assert row.bytes == 0 and "memory" in row.reason


def test_threads_make_one_copy_between_them() -> None:
    module = linear()
    call, found = run(module), []
    with torch.no_grad():
        assert_right(call, module)
    weights.forget_weights()
    before = made()

    def work() -> None:
        with torch.no_grad():
            x = torch.randn(5, K)
            found.append(bool(torch.allclose(call(x), module(x), rtol=1e-4, atol=1e-4)))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [True] * 4 and made() == before + 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_process_goes_on_with_the_copies() -> None:
    module = linear()
    torch.set_num_threads(1)  # a forked process has none of its parent's threads
    call = run(module)
    with torch.no_grad():
        assert_right(call, module)
        child = os.fork()
        if child == 0:
            os._exit(int(not _right_in_child(call, module)))
        _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0


def _right_in_child(call: Callable[[Tensor], Tensor], module: nn.Linear) -> bool:
    x, before = torch.randn(5, K), made()
    same = torch.allclose(call(x), module(x), rtol=1e-4, atol=1e-4) and made() == before
    in_place(module)
    return same and all(torch.allclose(call(x), module(x), rtol=1e-4, atol=1e-4) for _ in range(3))
