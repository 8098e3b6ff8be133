"""`polytile.profile` says how long each kernel of a call takes."""

import torch

import polytile
from polytile.report.call import CALL, HOST, read


def test_kernels_and_operators_of_a_call_are_listed_with_their_times(tmp_path):
    def f(x, w):
        return torch.linalg.inv(torch.softmax(torch.relu(x @ w) * 2, -1) + torch.eye(12))

    compiled = torch.compile(f, backend="polytile", dynamic=True)
    told = polytile.profile(compiled, torch.randn(12, 20), torch.randn(20, 12))
    by_name = {line.name.split(" ")[0]: line for line in told.lines}
    product = next(line for name, line in by_name.items() if name.startswith("mm_"))
    assert product.generated and product.calls == 1 and "aten.mm" in product.name
    inverse = next(line for name, line in by_name.items() if name.startswith("aten::linalg_inv"))
    assert not inverse.generated and inverse.calls == 1 and "aten::linalg_lu_factor_ex" not in by_name
    assert all(line.host > 0 for line in told.lines) and told.wall > 0
    assert told.host == sum(line.host for line in told.lines)
    assert "mm_" in str(told) and "device" not in str(told)
    [view] = told.views
    host = {step.name for step in view.steps if step.lane == HOST}
    assert host == {line.name for line in told.lines} and view.lanes == [CALL, HOST]
    told.save(tmp_path / "call.json")
    assert read(tmp_path / "call.json").views == told.views
