"""Writes out the calls of flex_attention, and of its derivative, that AOTAutograd has left in a graph.

    flex_attention(q, k, v, score_mod, mask_mod)
        →   s = products(q, k);  out, lse = attention_with_lse(q, k, v, where(mask_mod, score_mod(s), -inf))
    flex_attention_backward(q, k, v, out, lse, grad, grad_lse, score_mod, joint, mask_mod)
        →   s = products(q, k);  slopes = joint(s, 1)
            dq, dk, dv = attention_of_backward(q, k, v, where(mask_mod, score_mod(s), -inf), slopes, out, lse, grad, grad_lse)

Until then forward and backward are one node each, so that the partitioner can save nothing with an element for each query and
key. PyTorch differentiates score_mod when it traces the operator: `joint` maps a score, its position and the gradient of the
modified score to that of the score, and is linear in the gradient. Afterwards scores and slopes are expressions inside kernels
(operator.py), which compute them from q and k in both passes.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from operator import getitem
from typing import Any

import torch
import torch.fx
from torch import Tensor
from torch._higher_order_ops.flex_attention import flex_attention, flex_attention_backward
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_unflatten

from polytile.frontend.attention.flex import at_all, is_elementwise
from polytile.frontend.attention.operator import COMPUTED, OF_BACKWARD, PRODUCTS, WITH_LSE
from polytile.frontend.attention.regions import SCORED
from polytile.frontend.lower.decompositions import decompositions

prims = torch.ops.prims

LN2 = math.log(2)


def write_out_whole(module: torch.fx.GraphModule) -> None:
    """Replace PyTorch's operators in one of AOTAutograd's graphs by attention whose scores are computed in the kernel."""
    calls = [node for node in module.graph.nodes if node.op == "call_function" and node.target in _FORMS]
    for node in calls:
        _replace(module, node, _FORMS[node.target])
    if calls:
        module.graph.eliminate_dead_code()
        module.graph.lint()
        module.recompile()


@dataclass(frozen=True)
class _Function:
    """score_mod, mask_mod or the slope of score_mod, and whether it can be applied to tensors of many scores and positions."""

    call: Callable[..., Any]
    by_elements: bool

    def at_all(self, products: Tensor, captured: Sequence[Any], scored: bool = True) -> Tensor:
        """The function of all products, or of their positions alone."""
        places = [torch.arange(n, device=products.device) for n in products.shape]
        with _Unrounded():
            result = at_all(self.call, products if scored else None, places, captured, self.by_elements)
        return result.to(torch.float32) if scored else result


def _forward(
    q: Tensor, k: Tensor, v: Tensor, score_mod: _Function, mask_mod: _Function, scale: float, kernel_options: dict[str, Any],
    score_captured: Sequence[Any], mask_captured: Sequence[Any],
) -> tuple[Tensor, Tensor]:  # fmt: skip
    scores = _scores(PRODUCTS(q, k, scale, torch.float32), score_mod, score_captured, mask_mod, mask_captured)
    out, lse = WITH_LSE(q, k, v, scores, scale)
    return out, lse / _unit(kernel_options)


def _backward(
    q: Tensor, k: Tensor, v: Tensor, out: Tensor, lse: Tensor, grad: Tensor | None, grad_lse: Tensor | None,
    score_mod: _Function, slope: _Function, mask_mod: _Function, scale: float, kernel_options: dict[str, Any],
    score_captured: Sequence[Any], mask_captured: Sequence[Any],
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    unit, products = _unit(kernel_options), PRODUCTS(q, k, scale, torch.float32)
    scores = _scores(products, score_mod, score_captured, mask_mod, mask_captured)
    one = torch.ones((), dtype=torch.float32, device=q.device)
    slopes = slope.at_all(products, (one, *score_captured))
    given = grad if grad is not None else torch.zeros_like(out)
    of_lse = grad_lse / unit if grad_lse is not None else None
    dq, dk, dv, _ = OF_BACKWARD(q, k, v, scores, slopes, out, lse * unit, given, of_lse, scale)
    return dq, dk, dv


_FORMS: dict[Any, Callable[..., Any]] = {flex_attention: _forward, flex_attention_backward: _backward}


def _unit(kernel_options: dict[str, Any]) -> float:
    """What one of the operator's log-sum-exps is in the natural logarithm: they are in base 2 unless FLASH kernels are
    requested."""
    return 1.0 if kernel_options.get("BACKEND") == "FLASH" else LN2


def _scores(
    products: Tensor, score_mod: _Function, score_captured: Sequence[Any], mask_mod: _Function, mask_captured: Sequence[Any]
) -> Tensor:
    """score_mod of the products where mask_mod allows, else -inf."""
    changed = score_mod.at_all(products, score_captured)
    return torch.where(mask_mod.at_all(products, mask_captured, scored=False), changed, -math.inf)


class _Unrounded(TorchDispatchMode):
    """Leaves out the roundings to 16-bit dtypes at the ends of decomposed operators. PyTorch traces functions with a score of q's
    dtype, but scores are float32. A rounding that a function asks for is another operator, and stays."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is prims.convert_element_type.default and args[1] in (torch.bfloat16, torch.float16):
            return args[0]
        return func(*args, **(kwargs or {}))


# graphs ----------------------------------------------------------------------------------------------------------------


def _replace(module: torch.fx.GraphModule, call: torch.fx.Node, form: Callable[..., Any]) -> None:
    """Insert the nodes of `form` in place of a call, and let what uses the call's results use theirs."""
    given = inspect.signature(form).bind(*call.args).arguments
    functions = _functions(module, given)
    leaves, spec = tree_flatten({**given, **dict.fromkeys(functions)})
    inputs = [each for each in dict.fromkeys(leaves) if isinstance(each, torch.fx.Node)]

    def run(*values: Any) -> Any:
        known = dict(zip(inputs, values, strict=True))
        arguments = tree_unflatten([known.get(each, each) if isinstance(each, torch.fx.Node) else each for each in leaves], spec)
        return form(**{**arguments, **functions})

    fakes = [each.meta["val"] for each in inputs]
    mode = next(fake.fake_mode for fake in fakes if isinstance(fake, FakeTensor))
    with unset_fake_temporarily(), mode, torch.no_grad():
        traced = make_fx(run, decomposition_table=decompositions())(*fakes)
    results = _grafted(module, call, traced, inputs)
    for user in list(call.users):
        assert user.target is getitem
        index = user.args[1]
        if isinstance(index, int) and index < len(results):
            user.replace_all_uses_with(results[index])
            module.graph.erase_node(user)


def _functions(module: torch.fx.GraphModule, given: Mapping[str, Any]) -> dict[str, _Function]:
    """The functions among the arguments of a call."""

    def function(node: Any, scored: bool, captured: Sequence[Any]) -> _Function:
        call = module.get_submodule(str(node.target))
        return _Function(call, is_elementwise(call, scored, captured))

    captured = given["score_captured"]
    functions = {
        "score_mod": function(given["score_mod"], True, captured),
        "mask_mod": function(given["mask_mod"][-1], False, given["mask_captured"]),  # the last part of a BlockMask
    }
    if "slope" in given:
        joint = module.get_submodule(str(given["slope"].target))

        def slope(*arguments: Any) -> Tensor:
            derivative: Tensor | None = joint(*arguments)[0]
            return torch.zeros_like(arguments[5]) if derivative is None else derivative

        functions["slope"] = _Function(slope, is_elementwise(slope, True, (torch.ones(()), *captured)))
    return functions


def _grafted(
    module: torch.fx.GraphModule, call: torch.fx.Node, traced: torch.fx.GraphModule, inputs: Sequence[torch.fx.Node]
) -> tuple[torch.fx.Node, ...]:
    """Copies of the traced nodes before `call`; returns those of the results. What only scores depend on may be computed anew for
    each of its uses."""
    placeholders = traced.graph.find_nodes(op="placeholder")
    copies = dict(zip(placeholders, inputs, strict=True))
    with module.graph.inserting_before(call):
        for node in traced.graph.nodes:
            if node.op == "get_attr":
                name = f"{call.name}{node.target}"
                setattr(module, name, getattr(traced, str(node.target)))
                copies[node] = module.graph.get_attr(name)
                copies[node].meta = dict(node.meta)
            elif node.op == "call_function":
                copies[node] = module.graph.node_copy(node, copies.__getitem__)
                if node.target not in SCORED:
                    copies[node].meta[COMPUTED] = False
    (output,) = traced.graph.find_nodes(op="output")
    return tuple(copies[each] for each in output.args[0])
