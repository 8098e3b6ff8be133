"""The text of whole programs after all passes; golden/*.txt is what a person has read and found good."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from polytile import options
from polytile.ir.program import Program
from polytile.passes.pipeline import optimize
from tests.passes.helpers import BF16, S0, S1, S2, Net, assert_golden, assert_same, layer_norm, softmax


def a_softmax() -> Program:
    net = Net()
    return net.program(softmax(net, net.input("x", S0, S1)))


def a_layer_norm() -> Program:
    net = Net()
    x, weight, bias = net.input("x", S0, S1, 64), net.input("weight", 64), net.input("bias", 64)
    return net.program(layer_norm(net, x, weight, bias, 64.0))


def a_two_layer_network() -> Program:
    """relu(x @ w1 + b1) @ w2 + x, in the shapes that nn.Linear gives rise to."""
    net = Net()
    x = net.input("x", S0, S1, S2)
    up, bias, down = net.input("up", S2, 128), net.input("bias", 128), net.input("down", 128, S2)
    hidden = net.op("add", net.mm(net.view(x, S0 * S1, S2), up), bias)
    hidden = net.op("maximum", net.view(hidden, S0, S1, 128), 0.0)
    out = net.mm(net.view(hidden, S0 * S1, 128), down)
    return net.program(net.op("add", net.view(out, S0, S1, S2), x))


def batch_norm_training() -> Program:
    """Normalises over batch and image, and moves the running mean."""
    net = Net()
    x, weight, running = net.input("x", S0, 8, S1, S1), net.input("weight", 8, 1, 1), net.input("running", 1, 8, 1, 1)
    count = 49.0
    mean = net.op("div", net.reduce("sum", x, 0, 2, 3, keepdim=True), count)
    centred = net.op("sub", x, mean)
    variance = net.op("div", net.reduce("sum", net.op("mul", centred, centred), 0, 2, 3, keepdim=True), count)
    out = net.op("mul", net.op("mul", centred, net.op("rsqrt", net.op("add", variance, 1e-5))), weight)
    net.write(running, net.op("add", net.op("mul", running, 0.9), net.op("mul", mean, 0.1)))
    return net.program(out)


def a_chain_of_reshapes() -> Program:
    """(s0, s1, 4, 16) → (s0·s1, 64) → (s0, s1·64) → (s0, s1, 64), a pointwise operation at each."""
    net = Net()
    x = net.op("exp", net.input("x", S0, S1, 4, 16))
    x = net.op("add", net.view(x, S0 * S1, 64), 1.0)
    x = net.op("sin", net.view(x, S0, S1 * 64))
    x = net.op("mul", net.view(x, S0, S1, 64), 2.0)
    return net.program(net.reduce("sum", x, 2))


def attention_in_bfloat16() -> Program:
    """softmax(q @ kᵀ / 4) @ v a head at a time, everything bfloat16."""
    net = Net()
    q, k, v = (net.input(name, S0, S1, 16, dtype=BF16) for name in "qkv")
    scores = net.op("mul", net.mm(q, net.permute(k, 0, 2, 1)), 0.25)
    return net.program(net.mm(softmax(net, scores), v))


def layer_norm_backward() -> Program:
    """dx by rows; dweight and dbias by columns."""
    net = Net()
    dy, xhat, weight = net.input("dy", S0, 64), net.input("xhat", S0, 64), net.input("weight", 64)
    rstd = net.input("rstd", S0, 1)
    scaled = net.op("mul", dy, weight)
    first = net.op("div", net.reduce("sum", scaled, 1, keepdim=True), 64.0)
    second = net.op("div", net.reduce("sum", net.op("mul", scaled, xhat), 1, keepdim=True), 64.0)
    dx = net.op("mul", net.op("sub", net.op("sub", scaled, first), net.op("mul", xhat, second)), rstd)
    return net.program(dx, net.reduce("sum", net.op("mul", dy, xhat), 0), net.reduce("sum", dy, 0))


PROGRAMS: dict[str, Callable[[], Program]] = {
    "softmax": a_softmax,
    "layer_norm": a_layer_norm,
    "two_layer_network": a_two_layer_network,
    "batch_norm_training": batch_norm_training,
    "reshapes": a_chain_of_reshapes,
    "attention_bfloat16": attention_in_bfloat16,
    "layer_norm_backward": layer_norm_backward,
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_optimised_program_reads_as_accepted(name: str) -> None:
    with options.override(verify_ir=True):
        assert_golden(name, optimize(PROGRAMS[name]()).program)


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_optimised_program_means_the_same(name: str) -> None:
    before = PROGRAMS[name]()
    after = optimize(before).program
    for values in ({S0: 3, S1: 7, S2: 5}, {S0: 1, S1: 2, S2: 9}):
        assert_same(before, after, values)


@pytest.mark.parametrize("name", PROGRAMS)
def test_passes_give_the_same_text_each_time(name: str) -> None:
    assert_golden(name, optimize(PROGRAMS[name]()).program)


def test_without_fusion_every_operator_keeps_its_loop() -> None:
    before = a_softmax()
    with options.override(fuse=False):
        after = optimize(before).program
    assert len(after.operations) == len(before.operations)
    assert_same(before, after, {S0: 3, S1: 4})
