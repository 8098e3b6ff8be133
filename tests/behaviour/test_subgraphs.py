"""Graphs within a graph (torch.cond, while_loop, regions compiled once) are programs of polytile's own."""

import pytest
import torch
from torch._higher_order_ops import scan, while_loop
from torch._higher_order_ops.map import map as mapped
from torch.utils._pytree import tree_map

import polytile

NESTED = torch.compiler.nested_compile_region


def compiled(f, **options):
    torch._dynamo.reset()
    polytile.reset()
    return torch.compile(f, backend="polytile", dynamic=True, fullgraph=True, options={"stall": "compile"} | options)


def rows_vary(x):
    """Dynamo fails (KeyError) where a region's sizes turn out to be fixed while it is traced: only the rows may vary."""
    torch._dynamo.mark_dynamic(x, 0)
    return x


def layers_compiled(model, backend="polytile"):
    torch._dynamo.reset()
    polytile.reset()
    options = {"options": {"stall": "compile"}} if backend == "polytile" else {}
    return torch.compile(model, backend=backend, fullgraph=True, **options)


def how(told) -> dict[str, set[str]]:
    operators = {row.operator for row in told.operators}
    return {name: {row.how for row in told.operators if row.operator == name} for name in operators}


def branches(x, y):
    return torch.cond(x.sum() > 0, lambda a, b: torch.softmax(a @ b, -1) * 2, lambda a, b: (a @ b).relu() - 1, (x, y))


@pytest.mark.parametrize("wrapper", ["cpp", "python", "fx"])
def test_both_branches_are_compiled_and_serve_all_sizes(wrapper):
    f = compiled(branches, wrapper=wrapper)
    with torch.no_grad():
        for rows, inner, columns in [(5, 7, 4), (33, 20, 9), (2, 3, 70)] * (5 if wrapper == "cpp" else 1):
            for sign in (1, -1):
                x, y = sign * torch.rand(rows, inner), torch.randn(inner, columns)
                torch.testing.assert_close(f(x, y), branches(x, y))
        told = polytile.explain(f, torch.rand(5, 7), torch.randn(7, 4))
    assert how(told)["cond"] == {"programs"} and how(told)["aten.mm.default"] == {"template"}
    assert polytile.counters["graphs_compiled"] == 1 and "cond" not in str(polytile.counters["library_calls"])
    assert any(name.endswith(".true_graph_0") for name in told.graphs)


def rounds(x, most):
    def body(i, x):
        return i + 1, torch.tanh(x @ x.t() @ x) * 1.5

    return while_loop(lambda i, x: i < most, body, (torch.zeros((), dtype=torch.int64), x))


def test_a_loop_runs_its_programs_and_returns_copies_where_it_runs_none():
    f = compiled(rounds)
    with torch.no_grad():
        for rows, most in [(5, 3), (40, 2), (7, 0)]:
            x = torch.randn(rows, 6) / 4
            got, want = f(x, torch.tensor(most)), rounds(x, torch.tensor(most))
            torch.testing.assert_close(got, want)
            assert got[1].data_ptr() != x.data_ptr()
        assert how(polytile.explain(f, x, torch.tensor(2)))["while_loop"] == {"programs"}


def recurrence(x, w):
    def step(h, x):
        h = torch.tanh(x + h @ w)
        return h, h * 2

    return scan(step, torch.zeros_like(x[0]), x)


def test_a_scan_runs_its_program_at_each_step():
    f = compiled(recurrence)
    with torch.no_grad():
        for length, rows in [(4, 5), (9, 3), (1, 20)]:
            x, w = torch.randn(length, rows, 6).transpose(0, 1).contiguous().transpose(0, 1), torch.randn(6, 6)
            torch.testing.assert_close(f(x, w), recurrence(x, w))
        assert how(polytile.explain(f, x, w))["scan"] == {"programs"}


def test_a_scan_trains_whose_step_returns_what_its_backward_pass_reads():
    """torch's scan takes a result that is saved as well for one memory returned twice, unless it is detached."""

    def decayed(x):
        return scan(lambda carry, row: (carry * 0.9 + row.tanh(), carry.exp()), torch.zeros_like(x[0]), x)[1]

    f = compiled(decayed)
    for length in (11, 4):
        x = torch.randn(length, 3, requires_grad=True)
        want = torch.autograd.grad(decayed(x).square().sum(), x)
        torch.testing.assert_close(torch.autograd.grad(f(x).square().sum(), x), want, rtol=1e-4, atol=1e-4)
    assert "library" not in set().union(*how(polytile.explain(f, x)).values())


def test_a_map_runs_its_program_at_each_step():
    def each(x, y):
        return mapped(lambda row, y: (torch.softmax(row + y, -1), (row * y).sum()), x, y)

    f = compiled(each)
    with torch.no_grad():
        for count, columns in [(4, 5), (2, 30)]:
            x, y = torch.randn(count, 3, columns), torch.randn(columns)
            torch.testing.assert_close(f(x, y), each(x, y))
        assert how(polytile.explain(f, x, y))["map_impl"] == {"programs"}


class Layers(torch.nn.Module):
    def __init__(self, count: int, dropout: float = 0.0) -> None:
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(24, 24) for _ in range(count))
        self.dropout = dropout

    @NESTED
    def layer(self, x, weight, bias):
        x = torch.nn.functional.layer_norm(x + torch.relu(torch.nn.functional.linear(x, weight, bias)), (24,))
        return torch.nn.functional.dropout(x, self.dropout) if self.dropout else x

    def forward(self, x):
        for layer in self.layers:
            x = self.layer(x, layer.weight, layer.bias)
        return x


def test_a_region_is_lowered_once_for_all_its_calls():
    counts = []
    for layers in (2, 6):
        model = Layers(layers)
        f = layers_compiled(model)
        with torch.no_grad():
            for rows in (5, 40):
                x = rows_vary(torch.randn(rows, 24))
                torch.testing.assert_close(f(x), model(x))
        counts.append(polytile.counters["kernels_generated"])
        assert how(polytile.explain(f, x))["invoke_subgraph"] == {"programs"}
    assert counts[0] >= counts[1] > 0 or counts[1] == 0  # the later model's kernels are those of the first


def test_regions_train():
    model = Layers(3)
    f = layers_compiled(model)
    for rows in (5, 33):
        x = rows_vary(torch.randn(rows, 24, requires_grad=True))
        want = torch.autograd.grad(model(x).square().sum(), [x, *model.parameters()])
        got = torch.autograd.grad(f(x).square().sum(), [x, *model.parameters()])
        torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-4)
    assert not polytile.explain(f, x).failures


def test_regions_draw_eagers_random_numbers():
    """In the order of their calls, as AOTAutograd's own runs of the graph do."""
    model = Layers(3, dropout=0.4)
    x, results = rows_vary(torch.randn(6, 24)), []
    for backend in ("polytile", "aot_eager"):
        f = layers_compiled(model, backend)
        with torch.no_grad():
            f(x)
            torch.manual_seed(3)
            results.append(f(x))
    torch.testing.assert_close(*results)


def test_a_branch_that_returns_no_new_memory_and_one_of_several_results():
    def both(x):
        return torch.cond(x.shape[0] > 4, lambda x: (x.sin(), x.t().contiguous().sum(0)), lambda x: (x.cos(), x.sum(1)), (x,))

    f = compiled(both)
    with torch.no_grad():
        for rows in (3, 9):
            x = torch.randn(rows, 5)
            torch.testing.assert_close(f(x), both(x))


def test_calls_that_wait_for_nothing_agree_before_and_after_the_programs_are_there():
    torch._dynamo.reset()
    f = torch.compile(branches, backend="polytile", dynamic=True)
    with torch.no_grad():
        x, y = torch.rand(5, 7), torch.randn(7, 4)
        first = f(x, y)
        polytile.wait()
        again = tree_map(torch.clone, f(x, y))
    torch.testing.assert_close(first, branches(x, y))
    torch.testing.assert_close(again, first)
