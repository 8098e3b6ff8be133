"""Convolutions, whose images are laid out with their channels last: results, gradients, their strides and what they are views of
are eager's, whatever stands around the convolutions, from one graph; a constant weight is brought into its layout once."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

import polytile
from polytile.compiler.programs import compiled_programs
from polytile.ir import expr
from polytile.ir.buffer import View
from polytile.ir.loop import Loop
from polytile.ir.program import Extern
from polytile.runtime import native, weights
from tests.behaviour.helpers import compiled, graphs, steps, tensors

TOLERANCE = {torch.float32: 2e-5, torch.bfloat16: 3e-2, torch.float16: 5e-3, torch.float64: 1e-10}
LAST = torch.channels_last


@pytest.fixture(autouse=True)
def nothing_kept() -> Iterator[None]:
    weights.forget_weights()
    yield
    weights.forget_weights()


def images(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def assert_alike(got: object, want: object) -> None:
    """Same structure, types, strides (where they lead to another element) and, within rounding, values."""
    mine, theirs = tensors(got), tensors(want)
    assert len(mine) == len(theirs)
    for one, other in zip(mine, theirs, strict=True):
        assert steps(one) == steps(other), (one.stride(), other.stride())
        allowed = TOLERANCE.get(other.dtype, 0.0)
        largest = float(other.detach().double().abs().max()) if other.numel() else 0.0
        torch.testing.assert_close(one, other, rtol=allowed, atol=allowed * max(1.0, largest))


class Block(nn.Module):
    """Two convolutions with BatchNorm and ReLU, around which the images are added."""

    def __init__(self, channels: int = 6) -> None:
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1)
        self.second = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(channels)
        self.norm.running_mean.uniform_(-1, 1)
        self.norm.running_var.uniform_(0.5, 2)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.second(F.relu(self.norm(self.first(x)))) + x)


def library_calls(name: str) -> list[Extern]:
    """The calls of an operator in the programs compiled since the test began."""
    programs = [program.program for program in compiled_programs() if program.program is not None]
    found = [op for program in programs for op in program.operations if isinstance(op, Extern) and name in str(op.target)]
    assert found
    return found


def views(call: Extern, count: int) -> list[View]:
    """The first `count` tensors that the call takes."""
    return [ref.value for ref in call.args[:count] if isinstance(ref.value, View)]


def is_channels_last(view: View) -> bool:
    return view.strides[1] == 1


# what is laid out how -------------------------------------------------------------------------------------------------


def test_images_stay_channels_last_between_convolutions_and_one_graph_serves_all_sizes() -> None:
    model = nn.Sequential(Block(), Block()).eval()
    run = compiled(model, tune="off")
    with torch.no_grad():
        for shape in ((2, 6, 9, 12), (3, 6, 5, 4), (5, 6, 17, 2)):
            assert_alike(run(images(*shape)), model(images(*shape)))
    assert graphs() == (1, 1)
    calls = library_calls("convolution")
    assert len(calls) == 4 and all(is_channels_last(view) for call in calls for view in views(call, 1))
    (source,) = (program.source for program in compiled_programs())
    assert source.count("aten.clone") <= 1 and source.count("_empty_cpu(") == 1  # of the input; roots of variances are kept


def test_a_step_of_training_takes_images_and_weights_channels_last_both_ways() -> None:
    model = nn.Sequential(Block(), Block())
    run = compiled(model, tune="off")
    for shape in ((2, 6, 9, 12), (4, 6, 5, 7)):
        found = []
        for call in (model, run):
            model.zero_grad(set_to_none=True)
            for module in model.modules():
                if isinstance(module, nn.BatchNorm2d):
                    module.reset_running_stats()
            x = images(*shape).requires_grad_()
            call(x).square().sum().backward()
            buffers = [buffer.clone() for buffer in model.buffers()]
            found.append([x.grad, *(parameter.grad for parameter in model.parameters()), *buffers])
        for got, want in zip(*reversed(found), strict=True):
            assert got is not None and want is not None and steps(got) == steps(want)
            torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-3 * max(1.0, float(want.abs().max())))
    assert graphs() == (2, 1)
    for call in library_calls("aten.convolution_backward"):
        assert all(map(is_channels_last, views(call, 3)))


def test_the_backward_pass_of_a_1_by_1_convolution_with_steps_takes_planes() -> None:
    plain = [layer for _ in range(4) for layer in (nn.Conv2d(6, 6, 3, padding=1), nn.ReLU())]
    compiled(nn.Sequential(*plain, nn.Conv2d(6, 8, 1, 2)), tune="off")(images(2, 6, 29, 31)).sum().backward()
    stepping, *others = library_calls("aten.convolution_backward")
    assert not any(map(is_channels_last, views(stepping, 2)))
    assert all(is_channels_last(view) for call in others for view in views(call, 3))


def layouts_of(model: nn.Module, x: Tensor) -> list[bool]:
    """Whether the images of each convolution of a model have their channels last; its results are right."""
    torch._dynamo.reset()
    run = compiled(model.eval(), tune="off")
    with torch.no_grad():
        assert_alike(run(x), model(x))
    program = compiled_programs()[-1].program
    assert program is not None
    calls = [op for op in program.operations if isinstance(op, Extern) and "convolution" in str(op.target)]
    return [is_channels_last(view) for call in calls for view in views(call, 1)]


def test_layouts_are_those_that_cost_least_conversions_included() -> None:
    alone = [nn.Conv2d(8, 8, 3, groups=8), nn.Conv2d(8, 8, 1), nn.Conv2d(64, 64, 3)]
    assert [layouts_of(layer, images(2, layer.in_channels, 9, 8)) for layer in alone] == [[False]] * 3
    chain = nn.Sequential(*[layer for _ in range(4) for layer in (nn.Conv2d(8, 8, 3, padding=1), nn.ReLU())])
    assert layouts_of(chain, images(2, 8, 19, 18)) == [True] * 4
    assert layouts_of(chain, images(2, 8, 19, 18).contiguous(memory_format=LAST)) == [True] * 4
    assert layouts_of(alone[0], images(2, 8, 9, 8).contiguous(memory_format=LAST)) == [True]


TRANSPOSED: dict[str, dict[str, Any]] = {
    "strides": {"stride": (2, 1)},
    "more room": {"stride": 3, "output_padding": (2, 1), "padding": 1},
    "groups": {"groups": 2, "stride": 2},
    "for each channel": {"groups": 4},
    "dilated": {"dilation": 2, "padding": 2},
    "without bias": {"bias": False, "stride": 2},
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
def test_transposed_convolutions_have_their_channels_last_and_are_eagers(dtype: torch.dtype, training: bool) -> None:
    torch.manual_seed(5)
    model = nn.ModuleList([nn.ConvTranspose2d(4, 8, 3, **kind) for kind in TRANSPOSED.values()]).to(dtype)
    run = compiled(lambda x: [kind(x) for kind in model], tune="off")
    for shape in ((2, 4, 9, 8), (3, 4, 6, 11)):
        outcomes = []
        for call in (run, lambda x: [kind(x) for kind in model]):
            x = images(*shape, dtype=dtype).requires_grad_(training)
            with torch.set_grad_enabled(training):
                results = call(x)
            if training:
                torch.stack([result.square().sum() for result in results]).sum().backward()
            outcomes.append([*results, *([x.grad] if x.grad is not None else [])])
        assert_alike(*outcomes)
    if not training:  # groups of few channels gain nothing by it
        last = [all(is_channels_last(view) for view in views(call, 1)) for call in library_calls("convolution")]
        assert last == ["groups" not in kind for kind in TRANSPOSED.values()]


@pytest.mark.parametrize("function", [F.conv2d, F.conv_transpose2d])
def test_the_number_of_groups_may_be_a_size_like_others(function: Callable[..., Tensor]) -> None:
    run = compiled(lambda x, w, groups: function(x, w, groups=groups), tune="off")
    with torch.no_grad():
        for channels, groups in ((4, 2), (6, 3)):
            x, w = images(2, channels, 8, 9), images(channels, 2, 3, 3)
            assert_alike(run(x, w, groups), function(x, w, groups=groups))


def test_images_of_types_without_such_kernels_stay_as_they_are() -> None:
    model = Block().double().eval()
    run = compiled(model, tune="off")
    with torch.no_grad():
        assert_alike(run(images(2, 6, 8, 9, dtype=torch.float64)), model(images(2, 6, 8, 9, dtype=torch.float64)))
    assert not any(is_channels_last(view) for call in library_calls("convolution") for view in views(call, 1))


# what stands around convolutions --------------------------------------------------------------------------------------

TAILS: dict[str, Callable[[Tensor], object]] = {
    "itself and more": lambda y: (y, y + 1, F.relu(y)),
    "flattened": lambda y: y.flatten(1) @ torch.ones(y.shape[1] * y.shape[2] * y.shape[3], 2),
    "a view of it": lambda y: (y.view(y.shape[0], 2, -1), y),
    "every other column": lambda y: (y * 2)[..., ::2],
    "transposed": lambda y: (y + 1).permute(0, 2, 3, 1),
    "one row of one channel": lambda y: y[:, 1, 2],
    "memory itself": lambda y: y.as_strided((2, 3), (3, 1), 1) * 2,
    "its bits": lambda y: y.view(torch.int32) < 0,
    "groups of channels": lambda y: F.group_norm(y, 2),
    "sorted": lambda y: torch.sort(y, dim=1).values,
    "summed": lambda y: (y.sum((2, 3)), y.mean(1), y.amax((1, 3))),
    "softmax": lambda y: torch.softmax(y, 1),
    "the largest": lambda y: F.max_pool2d(y, 2, return_indices=True),
    "averages": lambda y: (F.avg_pool2d(y, 3, 1, 1), F.adaptive_avg_pool2d(y, 1)),
    "resized": lambda y: F.interpolate(y, scale_factor=2, mode="bilinear", align_corners=False),
    "nearest": lambda y: F.interpolate(y, size=(7, 9), mode="nearest"),
    "padded": lambda y: F.pad(y, (1, 2, 0, 1), value=3.0),
    "reflected": lambda y: F.pad(y, (1, 1, 1, 1), mode="reflect"),
    "joined": lambda y: torch.cat([y, y * 2, y[:, :1]], 1),
    "halves": lambda y: y.chunk(2, 1)[0] * y.chunk(2, 1)[1],
    "scaled by channel": lambda y: y * torch.sigmoid(y.mean((2, 3), keepdim=True)),
    "where": lambda y: torch.where(y > 0, y, y[:, :, :1]),
    "contiguous": lambda y: y.contiguous() + y.contiguous(memory_format=LAST),
    "turned back": lambda y: F.conv_transpose2d(y, torch.ones(4, 3, 2, 2), stride=2),
    "dimensions more": lambda y: F.conv3d(y[:, None], torch.ones(2, 1, 2, 2, 2)),
    "as numbers": lambda y: (y > 0).to(torch.int64).sum(),
    "matrices": lambda y: y @ y.transpose(-1, -2),
    "rolled": lambda y: torch.roll(y, 1, 2).flip(3),
    "of another type": lambda y: (y.to(torch.float16), y.to(torch.bfloat16)),
}


ALONE = ("itself and more", "a view of it")
"""Those that return what the convolutions made, in strides that are the caller's then."""

GROUPS = [[name] for name in ALONE] + [[name for name in list(TAILS)[k::3] if name not in ALONE] for k in range(3)]


@pytest.mark.parametrize("names", GROUPS, ids=[names[0] for names in GROUPS])
@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
def test_whatever_follows_convolutions_sees_what_it_would_see_in_eager(names: list[str], training: bool) -> None:
    torch.manual_seed(3)
    first, second = nn.Conv2d(3, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)

    def function(x: Tensor) -> list[object]:
        middle = F.silu(first(x))
        return [TAILS[name](y) for y in (second(middle) + middle, middle) for name in names]

    run = compiled(function, tune="off")
    for shape in ((2, 3, 6, 8), (3, 3, 7, 5)):
        outcomes = []
        for call in (function, run):
            x = images(*shape).requires_grad_(training)
            with torch.set_grad_enabled(training):
                results = tensors(call(x))
                if training:
                    torch.stack([r.double().square().sum() for r in results if r.requires_grad]).sum().backward()
            outcomes.append([*results, *([x.grad] if x.grad is not None else [])])
        assert_alike(outcomes[1], outcomes[0])


def test_a_pool_that_a_convolution_and_an_addition_read_is_computed_once() -> None:
    conv = nn.Conv2d(8, 8, 3, padding=1)

    def pooled(x: Tensor) -> Tensor:
        y = F.max_pool2d(conv(x).relu(), 3, 2, 1)
        return conv(y) + y

    x = images(2, 8, 20, 24)
    with torch.no_grad():
        assert_alike(compiled(pooled)(x), pooled(x))
    program = compiled_programs()[-1].program
    assert program is not None
    loops = [operation for operation in program.operations if isinstance(operation, Loop)]
    windows = [sum(load.mask is not None for load in expr.loads(*loop.roots)) for loop in loops]
    assert sorted(windows)[-2:] == [0, 8], "a window of 3×3 has eight elements that may lie outside"


def test_views_of_results_share_their_memory() -> None:
    convolution = nn.Conv2d(3, 4, 3, padding=1)
    again = nn.Conv2d(4, 4, 1)

    def function(x: Tensor) -> tuple[Tensor, ...]:
        y = convolution(x)
        return again(F.relu(y)), y, y[:, 1:], y.flatten(1)

    run = compiled(function, tune="off")
    with torch.no_grad():
        got, want = run(images(2, 3, 6, 8)), function(images(2, 3, 6, 8))
    assert_alike(got, want)
    for k in (2, 3):
        assert got[k].untyped_storage().data_ptr() == got[1].untyped_storage().data_ptr()


def test_an_input_that_is_overwritten_keeps_its_strides() -> None:
    convolution = nn.Conv2d(3, 3, 3, padding=1)

    def function(x: Tensor) -> Tensor:
        y = convolution(x)
        x.copy_(F.relu(y))
        return convolution(x)

    run = compiled(function, tune="off")
    with torch.no_grad():
        given, expected = images(2, 3, 6, 8), images(2, 3, 6, 8)
        assert_alike([run(given), given], [function(expected), expected])


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "planes": lambda x: x,
    "channels last": lambda x: x.contiguous(memory_format=LAST),
    "transposed": lambda x: x.transpose(2, 3).contiguous().transpose(2, 3),
    "every other": lambda x: torch.stack([x, x], -1)[..., 0],
    "repeated": lambda x: x[:1].expand(x.shape),
}


@pytest.mark.parametrize("last", [False, True], ids=["weights as they are", "weights channels last"])
def test_inputs_and_weights_of_any_layout_give_eagers_strides(last: bool) -> None:
    model = nn.Sequential(nn.Conv2d(3, 3, 3, padding=1), nn.ReLU(), nn.Conv2d(3, 2, 1)).eval()
    model = model.to(memory_format=LAST) if last else model
    run = compiled(model, tune="off")
    with torch.no_grad():
        for layout in LAYOUTS.values():
            for shape in ((2, 3, 6, 8), (3, 3, 9, 4)):
                x = layout(images(*shape))
                assert_alike(run(x), model(x))


KINDS: dict[str, dict[str, object]] = {
    "strides": {"stride": (2, 1)},
    "groups": {"groups": 2},
    "for each channel": {"groups": 4},
    "dilated": {"dilation": 2, "padding": 2},
    "padded by name": {"padding": "same"},
    "reflected": {"padding": 1, "padding_mode": "reflect"},
    "without bias": {"bias": False},
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=["fp32", "bf16", "fp16"])
def test_every_kind_of_convolution(dtype: torch.dtype) -> None:
    torch.manual_seed(5)
    kinds = [nn.Sequential(nn.Conv2d(4, 8, 3, **kind), nn.ReLU(), nn.Conv2d(8, 4, 1)) for kind in KINDS.values()]
    model = nn.ModuleList(kinds).to(dtype)
    run = compiled(lambda x: [kind(x) for kind in model], tune="off")
    with torch.no_grad():
        for shape in ((2, 4, 9, 8), (3, 4, 6, 11)):
            x = images(*shape, dtype=dtype)
            assert_alike(run(x), [kind(x) for kind in model])


def test_no_images_at_all() -> None:
    model = nn.Sequential(nn.Conv2d(4, 8, 3), nn.ReLU(), nn.Conv2d(8, 4, 1))
    run = compiled(lambda x, n: model(x[n - 2 :]), tune="off")
    with torch.no_grad():
        for n in (3, 2, 4):
            assert_alike(run(images(2, 4, 9, 8), n), model(images(2, 4, 9, 8)[n - 2 :]))


STEPS: tuple[Callable[[Tensor], Tensor], ...] = (
    F.relu, lambda x: x * 2 + 1, lambda x: x + x.mean((2, 3), keepdim=True), lambda x: F.max_pool2d(x, 3, 1, 1),
    lambda x: F.avg_pool2d(x, 2, 1), lambda x: F.pad(x, (1, 0, 0, 1)), lambda x: torch.cat([x[:, 2:], x[:, :2]], 1),
    lambda x: x.transpose(2, 3), lambda x: F.interpolate(x, scale_factor=2.0), lambda x: F.group_norm(x, 2),
    lambda x: F.layer_norm(x, x.shape[3:]), lambda x: x.contiguous(), lambda x: x.flip(1), lambda x: x - x[:, :1],
    lambda x: x.reshape(x.shape[0], 2, 2, x.shape[2], x.shape[3]).sum(1).repeat(1, 2, 1, 1), lambda x: x.clamp(-1, 1),
    lambda x: torch.where(x > 0, x, x.flip(3)), lambda x: x.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2),
)  # fmt: skip


@settings(max_examples=settings().max_examples // 6)
@given(
    plan=st.lists(st.integers(-3, len(STEPS) - 1), min_size=1, max_size=6),
    kept=st.lists(st.booleans(), min_size=6, max_size=6),
    training=st.booleans(),
)
def test_random_networks(plan: list[int], kept: list[bool], training: bool) -> None:
    """Convolutions (negative numbers) and other steps in any order, some of what is between returned as well."""
    torch.manual_seed(len(plan))
    filters = [torch.randn(4, 4, size, size) / (2 * size) for size in (1, 3, 3)]

    def function(x: Tensor, *filters: Tensor) -> list[Tensor]:
        results = []
        for step, returned in zip(plan, kept, strict=False):
            x = F.conv2d(x, filters[-step - 1], padding=1) if step < 0 else STEPS[step](x)
            results += [x] if returned else []
        return [*results, F.conv2d(x, filters[1], padding=1)]

    torch._dynamo.reset()
    run = compiled(function, tune="off")
    for shape in ((2, 4, 6, 7), (3, 4, 8, 5)):
        outcomes = []
        for call in (function, run):
            arguments = [t.clone().requires_grad_(training) for t in (images(*shape), *filters)]
            results = call(*arguments)
            if training:
                loss = torch.stack([r.square().mean() for r in results]).sum()
                loss.backward()
            outcomes.append([*results, *(t.grad for t in arguments if t.grad is not None)])
        for got, want in zip(*reversed(outcomes), strict=True):
            assert steps(got) == steps(want)
            torch.testing.assert_close(got, want, rtol=1e-3, atol=1e-4 * max(1.0, float(want.detach().abs().max())))


# weights that are kept ------------------------------------------------------------------------------------------------


def needs_kept() -> None:
    if not (torch.backends.mkldnn.is_available() and native.module() is not None):
        pytest.skip("no copies of convolutions' weights are kept here: no oneDNN, or no compiler")


def made() -> int:
    return int(polytile.counters["weights_packed"])


CHANGES: tuple[Callable[[nn.Conv2d], object], ...] = (
    lambda c: c.weight.mul_(2),
    lambda c: c.weight[1:].add_(1),
    lambda c: setattr(c, "weight", nn.Parameter(torch.randn_like(c.weight))),
    lambda c: setattr(c.weight, "data", torch.randn_like(c.weight)),
    lambda c: c.load_state_dict({"weight": torch.randn_like(c.weight), "bias": torch.randn(c.out_channels)}),
    lambda c: c.bias.add_(1) if c.bias is not None else None,
)


def test_results_are_those_of_the_weight_as_it_is() -> None:
    needs_kept()
    convolution = nn.Conv2d(5, 7, 3)
    run, x = compiled(convolution, tune="off"), images(2, 5, 9, 8).contiguous(memory_format=LAST)
    with torch.no_grad():
        for change in CHANGES:
            for _ in range(12):
                assert_alike(run(x), convolution(x))
            change(convolution)
        assert_alike(run(x), convolution(x))
    assert made() == len(CHANGES)  # the last one changed no weight


def test_a_step_of_an_optimizer_changes_what_is_computed() -> None:
    needs_kept()
    convolution = nn.Conv2d(5, 7, 3)
    run, x = compiled(convolution, tune="off"), images(2, 5, 9, 8).contiguous(memory_format=LAST)
    optimizer = torch.optim.SGD(convolution.parameters(), lr=0.5, fused=True)
    for _ in range(3):
        with torch.no_grad():
            assert_alike(run(x), convolution(x))
        convolution(x).sum().backward()
        optimizer.step()


def test_nothing_is_kept_of_weights_that_others_may_write_to() -> None:
    needs_kept()
    convolution = nn.Conv2d(5, 7, 3)
    convolution.share_memory()
    run, x = compiled(convolution, tune="off"), images(2, 5, 9, 8).contiguous(memory_format=LAST)
    with torch.no_grad():
        assert_alike(run(x), convolution(x))
        explanation = polytile.explain(run, x)
    assert made() == 0 and [row.reason for row in explanation.weights] == ["other processes may write to it"]


def test_explain_lists_the_weights_and_their_copies_go_with_them() -> None:
    needs_kept()
    model = nn.Sequential(nn.Conv2d(5, 7, 3), nn.Conv2d(7, 5, 1))
    run, x = compiled(model, tune="off"), images(2, 5, 9, 8).contiguous(memory_format=LAST)
    with torch.no_grad():
        rows = polytile.explain(run, x).weights
    assert [row.sizes for row in rows] == [(7, 5, 3, 3), (5, 7, 1, 1)]
    assert all(row.bytes > 0 and row.made == 1 for row in rows)
    assert weights.packed_bytes() == sum(row.bytes for row in rows)
    del model, run
    torch._dynamo.reset()
    gc.collect()
    assert weights.packed_bytes() == 0


def test_the_option_that_bounds_copies_is_heeded() -> None:
    needs_kept()
    convolution = nn.Conv2d(5, 7, 3)
    run, x = compiled(convolution, tune="off", packed_weights_mib=0), images(2, 5, 9, 8)
    with torch.no_grad():
        assert_alike(run(x), convolution(x))
    assert made() == 0 and not polytile.explain(run, x).weights
