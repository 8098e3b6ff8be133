"""What a compiled function takes: numbers and tensors in any order, layouts of all kinds, sizes known only at run time,
and the check for NaN."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch._dynamo.decorators import mark_unbacked
from torch.func import vmap

from polytile import options
from polytile.errors import InvalidInput
from tests.behaviour.helpers import check, compiled, copied, graphs, multikernels, sized


def softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, -1)


# The option check_inputs.


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
def test_a_bad_value_in_an_input_names_argument_and_kernel(bad: float) -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        return torch.softmax(x, -1) * y

    run = compiled(function, check_inputs=True)
    x, y = sized((8, 40), (8, 40))
    check(function, run, x, y)
    y[3, 7] = bad
    ((kernel, arguments),) = ((k.spec.name, k.spec.names) for k in multikernels())
    with pytest.raises(InvalidInput, match=r"\[3, 7\]") as error:
        run(x, y)
    told = str(error.value)
    assert repr(kernel) in told and any(repr(name) in told for name in arguments)
    assert ("1 NaN and 0 infinite" if bad != bad else "0 NaN and 1 infinite") in told


@pytest.mark.parametrize("first", [False, True])
def test_whether_inputs_are_checked_is_settled_when_a_function_is_compiled(first: bool) -> None:
    """Though another program has the same kernel."""
    runs = {
        first: compiled(lambda x: torch.softmax(x * 3, -1)),
        not first: compiled(lambda x: torch.softmax(x * 3, -1)),  # on a line of its own: Python 3.10 has one code for equal ones
    }
    (x,) = sized((8, 40))
    for checked in runs:
        with options.override(check_inputs=checked):
            runs[checked](x)
    x[2, 2] = float("nan")
    runs[False](x)
    with pytest.raises(InvalidInput):
        runs[True](x)


def test_each_argument_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def function(x: Tensor, y: Tensor) -> Tensor:
        return x * y + torch.roll(x, 1, 0) * y.flip(0)

    run = compiled(function, check_inputs=True)
    x, y = sized((8, 40), (8, 40))
    run(x, y)
    looked: list[int] = []
    real = torch.isfinite
    monkeypatch.setattr(torch, "isfinite", lambda t: (looked.append(t.data_ptr()), real(t))[1])
    run(x, x)
    assert len(looked) == len(set(looked)) >= 1


def test_without_the_option_bad_values_pass_as_in_eager() -> None:
    (x,) = sized((8, 40))
    x[2, 2] = float("nan")
    check(softmax, compiled(softmax), x)


def test_integers_are_not_checked() -> None:
    def function(x: Tensor) -> Tensor:
        return x * 2 + 1

    check(function, compiled(function, check_inputs=True), torch.arange(-30, 30).view(6, 10))


# Numbers among the arguments.


@pytest.mark.parametrize("order", ["nxm", "xnm", "nmx"])
def test_integers_and_tensors_in_any_order(order: str) -> None:
    def function(**given: object) -> Tensor:
        x, n, m = given["x"], given["n"], given["m"]
        return torch.softmax(x.view(n, m) * n, -1) + m  # type: ignore[attr-defined]

    code = f"def call({', '.join(order)}):\n    return function(x=x, n=n, m=m)\n"
    scope: dict[str, object] = {"function": function}
    exec(code, scope)
    call = scope["call"]
    run = compiled(call)  # type: ignore[arg-type]
    for n, m in ((6, 7), (12, 30), (5, 3), (100, 17)):
        values = {"x": next(sized((n * m,))), "n": n, "m": m}
        torch.testing.assert_close(run(*[values[name] for name in order]), call(*[values[name] for name in order]))  # type: ignore[operator]
    assert graphs()[1] == 1


def test_floats_and_booleans() -> None:
    def function(x: Tensor, scale: float, negate: bool) -> Tensor:
        return torch.tanh(x * scale) * (-1 if negate else 1)

    run = compiled(function)
    (x,) = sized((6, 70))
    for scale in (0.5, 2.0, 3.25, -1e-3):
        for negate in (False, True):
            check(function, run, x, scale, negate)


SIGNED = {
    "rolled": lambda x, n: (x.roll(n, 0), x.roll(-n)),
    "a slice": lambda x, n: (x[n:] * 2, x[:n].sum(1)),
    "divided": lambda x, n: (x + (torch.arange(x.shape[1]) + n) // 3, torch.arange(x.shape[0]) * n % 5),
    "clamped": lambda x, n: x * max(n, 0) + min(n, 2),
    "a diagonal": lambda x, n: (x.tril(n), x.triu(n).exp()),
    "an index": lambda x, n: x[(torch.arange(x.shape[0]) + n) % x.shape[0]] + 1,
    "a product": lambda x, n: (x @ x.t()).roll(n, 0) + (torch.arange(x.shape[0]) + n) // 3,
}


@pytest.mark.parametrize("name", SIGNED)
def test_an_integer_has_any_sign(name: str) -> None:
    """A kernel's own integers were taken for positive ones, and divided so."""
    run = compiled(SIGNED[name], tune="off")
    for shape, n in (((6, 7), -3), ((4, 7), 5), ((5, 6), -99), ((5, 6), 99), ((5, 6), -6), ((7, 3), 0)):
        check(SIGNED[name], run, *sized(shape), n)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_numbers_that_vmaps_over_elements_convert(dtype: torch.dtype) -> None:
    def function(x: Tensor) -> tuple[Tensor, ...]:
        return tuple(vmap(vmap(lambda element, k=k: element * k))(x) for k in (2, 2.5, True))

    run = compiled(function, tune="off")
    for n in (3, 7):
        check(function, run, torch.randn(n, 4).to(dtype))
    assert graphs()[1] == 1


@pytest.mark.parametrize("shape", [(0, 3, 8), (3, 0, 8), (2, 3, 0)])
def test_empty_tensors_that_repeat_along_a_dimension_are_not_read(shape: tuple[int, ...]) -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.to(torch.int32), x * 2

    x = torch.empty(1, *shape[1:], dtype=torch.float64)[: shape[0]].expand(shape)
    for given in (x, torch.empty(0, *shape[1:], dtype=torch.float64).as_strided(shape, (0, 8, 1))):
        check(function, compiled(function, tune="off"), given)


def test_a_size_is_returned_with_tensors() -> None:
    def function(x: Tensor) -> tuple[int, Tensor, int]:
        return x.shape[0] * 2, x * 2, x.numel()

    run = compiled(function)
    for shape in ((3, 5), (7, 2), (40, 50)):
        x = next(sized(shape))
        got = run(x)
        assert (got[0], got[2]) == (shape[0] * 2, x.numel())
        assert torch.equal(got[1], x * 2)


def test_none_and_nested_containers() -> None:
    def function(given: dict[str, list[Tensor]], nothing: None) -> dict[str, object]:
        a, b = given["pair"]
        return {"sum": a + b, "nothing": nothing, "both": (a * 2, [b.sum(-1)])}

    a, b = sized((6, 9), (6, 9))
    got, want = compiled(function)({"pair": [a, b]}, None), function({"pair": [a, b]}, None)
    torch.testing.assert_close(got, want)


# Layouts of inputs and results.

LAYOUTS = {
    "contiguous": lambda x: x,
    "transposed": lambda x: x.transpose(-1, -2).contiguous().transpose(-1, -2),
    "channels last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "every other": lambda x: torch.stack([x, x * 2], -1)[..., 0],
    "expanded": lambda x: x[:1].expand(x.shape),
    "with an offset": lambda x: torch.cat([x[:1], x])[1:],
    "permuted": lambda x: x.permute(3, 1, 0, 2).contiguous().permute(2, 1, 3, 0),
}
OPERATIONS = {
    "pointwise": lambda x: torch.tanh(x) + 1,
    "two": lambda x: x * x.flip(0),
    "softmax": lambda x: torch.softmax(x, 1),
    "sum": lambda x: x.sum(2),
    "mean keeping": lambda x: x.mean((0, 3), keepdim=True),
    "clone": lambda x: x.clone() * 2,
    "contiguous": lambda x: (x + 1).contiguous(),
    "matmul": lambda x: x @ x.transpose(-1, -2),
    "joined": lambda x: torch.cat([x, x], 1),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_results_have_eagers_values_and_strides(layout: str) -> None:
    def function(x: Tensor) -> dict[str, Tensor]:
        return {name: operation(x) for name, operation in OPERATIONS.items()}

    run = compiled(function, tune="off")
    for shape in ((4, 3, 6, 5), (2, 8, 7, 9)):
        check(function, run, LAYOUTS[layout](next(sized(shape))))


OF_TWO: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "copysign": torch.copysign,
    "xlogy": torch.xlogy,
    "xlog1py": torch.special.xlog1py,
    "floor division": lambda x, y: x // y,
    "rounded division": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "remainder": torch.remainder,
    "log-sigmoid": lambda x, y: F.logsigmoid(x) + F.logsigmoid(y),
    "log-sigmoid of a transposed one": lambda x, y: F.logsigmoid(x),
}


@pytest.mark.parametrize("name", OF_TWO)
def test_results_of_two_layouts_have_eagers_strides(name: str) -> None:
    function = OF_TWO[name]
    run = compiled(function, tune="off")
    for rows, columns in ((5, 7), (9, 4)):
        x, y = torch.randn(columns, rows).t(), torch.randn(rows, columns)
        x[0, 0] = 0.0
        for given in ((x, y), (y, x), (x, x), (x, y[0]), (y[:, :1], x)):
            check(function, run, *given)


def test_special_values_of_products_with_logarithms() -> None:
    x = torch.tensor([[0.0, 0.0, 0.0, 1.0, torch.nan, -2.0], [2.0, 0.0, torch.inf, 0.0, 3.0, 0.0]]).t()
    y = torch.tensor([0.0, torch.nan, torch.inf, torch.nan, 1.0, -1.0]).unsqueeze(1).expand(6, 2)
    for function in (torch.xlogy, torch.special.xlog1py):
        torch.testing.assert_close(compiled(function, tune="off")(x, y), function(x, y), equal_nan=True)


def test_quotients_of_a_number_by_a_tensor() -> None:
    for function in (lambda x: 7 // x, lambda x: torch.div(7.5, x, rounding_mode="trunc")):
        check(function, compiled(function, tune="off"), torch.arange(1, 9))


def test_convolution_keeps_channels_last() -> None:
    torch.manual_seed(1)
    convolution = torch.nn.Conv2d(3, 8, 3, padding=1).to(memory_format=torch.channels_last)
    run = compiled(lambda x: torch.relu(convolution(x)) * 2)
    for shape in ((2, 3, 8, 9), (4, 3, 11, 6)):
        x = next(sized(shape)).contiguous(memory_format=torch.channels_last)
        want = torch.relu(convolution(x)) * 2
        got = run(x)
        assert got.stride() == want.stride()
        torch.testing.assert_close(got, want)


def test_one_graph_serves_another_layout_or_a_graph_of_its_own_does() -> None:
    def function(x: Tensor) -> Tensor:
        return torch.softmax(x, -1)

    run = compiled(function)
    for n in (7, 20, 33):
        (x,) = sized((n, n + 1))
        for given in (x, x.t().contiguous().t(), torch.stack([x, x], -1)[..., 0]):
            check(function, run, given)


# Sizes that are known only at run time.


def test_nonzero_makes_a_size() -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        where = torch.nonzero(x > 0.5)
        return where * 2, where.sum(0)

    run = compiled(function)
    for shape in ((5, 6), (40, 30), (3, 3)):
        check(function, run, *sized(shape, seed=shape[0]))
    check(function, run, -torch.ones(4, 4))
    check(function, run, torch.ones(4, 5))


def test_an_item_makes_a_size() -> None:
    def function(x: Tensor, count: Tensor) -> Tensor:
        n = count.item()
        torch._check(n >= 2)
        torch._check(n <= x.shape[0])
        return torch.softmax(x.narrow(0, 0, n), -1) + n

    run = compiled(function)
    (x,) = sized((40, 30))
    for n in (3, 40, 17, 2):
        check(function, run, x, torch.tensor(n))
    assert graphs()[1] == 1
    for n in (1, 41):
        with pytest.raises(RuntimeError):
            run(x, torch.tensor(n))
    check(function, run, x, torch.tensor(9))


TRUTHS = {
    "a factor": lambda x, k: (x * k, (x > 0) * k, x + k),
    "a choice": lambda x, k: torch.where(x > 0, x, k),
    "elements": lambda x, k: (torch.full((3,), k), torch.full_like(x, k), torch.tensor(k)),
}


@pytest.mark.parametrize("name", TRUTHS)
def test_an_item_makes_a_truth_value(name: str) -> None:
    def function(x: Tensor, threshold: Tensor) -> Any:
        return TRUTHS[name](x, (threshold > 3).item())

    run = compiled(function)
    for shape, threshold in (((5, 6), 4.5), ((40, 30), 1.0)):
        check(function, run, *sized(shape), torch.tensor(threshold))
    assert graphs()[1] == 1


@pytest.mark.parametrize("value", [0.25, 3, True])
def test_an_item_makes_a_factor_of_a_sum(value: float) -> None:
    def function(x: Tensor, factor: Tensor) -> tuple[Tensor, ...]:
        alpha = factor.item()
        y = (x * 2).to(torch.bool) if value is True else x * 2
        return y.add(y, alpha=alpha), *(() if value is True else (x.sub(y, alpha=alpha), torch.rsub(x, y, alpha=alpha)))

    run = compiled(function)
    for shape in ((5, 6), (40, 30)):
        check(function, run, *sized(shape), torch.tensor(value))


@pytest.mark.parametrize("shape", [(), (1,), (3, 4)])
def test_many_pieces_are_joined_before_they_are_read(shape: tuple[int, ...]) -> None:
    """More than a chain of choices takes: each piece is stored to its place, and no one of them stands for the whole."""

    def function(*pieces: Tensor) -> tuple[Tensor, Tensor]:
        joined = torch.stack([piece * 2 for piece in pieces])
        return joined.sum(0), joined + 1

    check(function, compiled(function), *sized(*[shape] * 12))


@pytest.mark.filterwarnings("error::FutureWarning")
def test_a_size_that_is_marked_as_unknown_serves_all_sizes() -> None:
    def function(x: Tensor) -> Tensor:
        return torch.softmax(x, -1)

    run = compiled(function)
    for x in sized((8, 16), (1, 16), (0, 16), (30, 16)):
        mark_unbacked(x, 0)
        check(function, run, x)
    assert graphs()[1] == 1


def test_a_boolean_mask_makes_a_size() -> None:
    def function(x: Tensor) -> Tensor:
        return x[x > 0].exp()

    run = compiled(function)
    for shape in ((5, 6), (40, 30)):
        check(function, run, *sized(shape, seed=3))


# Randomness.

GENERATORS = {
    "rand": lambda x: torch.rand(x.shape) + x,
    "randn": lambda x: torch.randn(x.shape) * x,
    "rand_like": lambda x: torch.rand_like(x) - x,
    "randint": lambda x: torch.randint(3, 50, x.shape) + x,
    "bernoulli": lambda x: torch.bernoulli(torch.sigmoid(x)) + x,
    "dropout": lambda x: torch.nn.functional.dropout(x, 0.25),
    "uniform": lambda x: torch.empty_like(x).uniform_(-2, 3) * x,
    "normal": lambda x: torch.normal(x, 2.0),
    "randperm": lambda x: x[torch.randperm(x.shape[0])] * 2,
    "multinomial": lambda x: torch.multinomial(torch.softmax(x, -1), 3) * 2,
}


@pytest.mark.parametrize("name", GENERATORS)
def test_random_operators_follow_the_seed_as_in_eager(name: str) -> None:
    function = GENERATORS[name]
    run = compiled(function)
    for shape in ((5, 8), (30, 17)):
        (x,) = sized(shape)
        for seed in (0, 77):
            torch.manual_seed(seed)
            want = [function(x), function(x)]
            state = torch.get_rng_state()
            torch.manual_seed(seed)
            got = [run(x), run(x)]
            torch.testing.assert_close(got, want, rtol=1e-6, atol=1e-6)
            assert torch.equal(torch.get_rng_state(), state)
            assert not torch.equal(got[0], got[1])


def test_the_first_call_draws_what_later_calls_draw() -> None:
    """Compiling and tuning take nothing from the stream."""
    function = GENERATORS["dropout"]
    (x,) = sized((50, 40))
    torch.manual_seed(3)
    want = function(*copied((x,)))
    torch.manual_seed(3)
    assert torch.equal(compiled(function)(x) == 0, want == 0)


def test_philox_numbers_are_uniform_normal_and_repeat_for_a_seed() -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return torch.rand_like(x), torch.randn_like(x), torch.nn.functional.dropout(torch.ones_like(x), 0.3)

    run = compiled(function, random="philox")
    x = torch.ones(300, 200)
    torch.manual_seed(11)
    uniform, normal, kept = run(x)
    assert 0 <= float(uniform.min()) < 0.001 and 0.999 < float(uniform.max()) < 1
    assert abs(float(uniform.mean()) - 0.5) < 0.01 and abs(float(uniform.std()) - 12**-0.5) < 0.01
    assert abs(float(normal.mean())) < 0.02 and abs(float(normal.std()) - 1) < 0.02
    assert abs(float((kept == 0).float().mean()) - 0.3) < 0.01
    torch.testing.assert_close(kept[kept != 0], torch.full_like(kept[kept != 0], 1 / 0.7))
    second = run(x)
    torch.manual_seed(11)
    again = run(x)
    for first, later, repeated in zip((uniform, normal, kept), second, again, strict=True):
        assert torch.equal(first, repeated) and not torch.equal(first, later)


def test_a_shift_by_minus_half_a_size_rolls_as_in_eager() -> None:
    def function(x: Tensor) -> Tensor:
        return x.roll((-(x.shape[0] // 2), x.shape[1] // 2 - x.shape[1]), (0, 1))

    run = compiled(function)
    for shape in ((7, 10), (8, 33), (2, 3)):
        check(function, run, *sized(shape))


WHATEVER_THE_DEFAULT = {
    "softmax": lambda x: torch.softmax(x, 1),
    "product": lambda x: x @ x.t(),
    "dropout": lambda x: torch.nn.functional.dropout(x, 0.25),
}


@pytest.mark.parametrize("name", WHATEVER_THE_DEFAULT)
def test_a_default_device_decides_nothing_about_tensors_of_another(name: str) -> None:
    function = WHATEVER_THE_DEFAULT[name]
    (x,) = sized((20, 30))
    torch.manual_seed(3)
    want = function(x)
    torch.set_default_device("meta")
    try:
        torch.manual_seed(3)
        got = compiled(function, persist=False)(x)
    finally:
        torch.set_default_device(None)
    torch.testing.assert_close(got, want)
