"""Writes a graph as a standalone script: an ATen or Dynamo graph, arguments of the same kind, and one compilation by polytile."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

import sympy
import torch
import torch.fx

from polytile import options
from polytile.frontend.hints import sizes_of
from polytile.frontend.library_calls import WITH_A_STATE
from polytile.version import __version__

UNKNOWN = 3
"""The value used for a size that is known only at run time."""

_PYTREES = {"fx_pytree": "torch.fx", "pytree": "torch.utils"}

_TEMPLATE = '''\
"""polytile {version}, torch {torch}, Python {python}, failed to compile this graph:

{error}
"""

import torch
from math import inf, nan
from torch import device

import polytile
{imports}

def tensor(sizes, strides, dtype, where):
    """Random numbers under these sizes and strides."""
    room = 1 + sum((n - 1) * s for n, s in zip(sizes, strides)) if 0 not in sizes else 0
    if dtype.is_floating_point or dtype.is_complex:
        numbers = torch.randn(room, dtype=torch.complex64 if dtype.is_complex else torch.float32)
    else:
        numbers = torch.randint(0, 2, (room,))
    return numbers.to(dtype).to(where).as_strided(sizes, strides)


class Graph(torch.nn.Module):
    def __init__(self):
        super().__init__()
{constants}
{forward}

def arguments():
    return [
{arguments}
    ]


if __name__ == "__main__":
    options = {options!r}
    with torch.no_grad():
        {call}
    print("polytile compiles this graph.")
'''

_FROM_DYNAMO = 'torch.compile(Graph(), backend="polytile", dynamic=True, options=options)(*arguments())'
_FROM_ATEN = "polytile.compiler.backend.compile_aten(Graph(), arguments(), options)(arguments())"

_SAVES_A_STATE = "run_and_save_rng_state"
"""An operator that only AOTAutograd puts into graphs: Dynamo and AOTAutograd do not take it back."""


def script(graph: torch.fx.GraphModule, error: str) -> str:
    """The text of a script that compiles `graph` under the current options, which may reproduce `error`."""
    code = graph.graph.python_code("self")
    values = sizes_of(graph)
    given = [_argument(node, values) for node in graph.graph.nodes if node.op == "placeholder"]
    return _TEMPLATE.format(
        version=__version__, torch=torch.__version__, python=sys.version.split()[0],
        error=error.replace("\\", "/").replace('"""', "'''"),
        imports="".join(_imports(code.globals)),
        constants="".join(f"        {line}\n" for line in _constants(graph)),
        forward="".join(f"    {line}\n" for line in code.src.strip().splitlines()),
        arguments="\n".join(f"        {text}," for text in given),
        options=_options(),
        call=_FROM_ATEN if any(str(node.target) == _SAVES_A_STATE for node in graph.graph.nodes) else _FROM_DYNAMO,
    )  # fmt: skip


def _options() -> dict[str, Any]:
    """Those in force, except that the call waits for what may fail, and raises it."""
    given = {row.name: options.get(row.name) for row in options.TABLE if not row.path}
    stall = "compile" if given["stall"] == "never" else given["stall"]
    changed = {name: value for name, value in given.items() if value != options.BY_NAME[name].default}
    return {**changed, "stall": stall, "on_failure": "raise"}


def _imports(names: Mapping[str, Any]) -> Iterator[str]:
    """Imports for the names in the graph's code, other than torch's."""
    for name, value in names.items():
        module, own = getattr(value, "__module__", None), getattr(value, "__qualname__", "")
        if name in ("torch", "device", "inf", "nan"):
            continue
        if name == "NoneType":
            yield "NoneType = type(None)\n"
        elif name in _PYTREES:
            yield f"from {_PYTREES[name]} import _pytree as {name}\n"
        elif module and own.isidentifier():
            yield f"from {module} import {own} as {name}\n"
        else:
            yield f"# {name} = {value!r}\n"


def _constants(graph: torch.fx.GraphModule) -> Iterator[str]:
    """The graph's constant tensors, with random values."""
    for name in dict.fromkeys(str(node.target) for node in graph.graph.nodes if node.op == "get_attr"):
        value: Any = graph
        for part in name.split("."):
            value = getattr(value, part)
        if isinstance(value, torch.Tensor):
            where, _, last = name.rpartition(".")
            owner = f"self.{where}" if where else "self"
            yield f"{owner}.{last} = {_tensor(value, {})}"


def _argument(node: torch.fx.Node, values: Mapping[sympy.Symbol, int]) -> str:
    value = node.meta.get("val", node.meta.get("example_value"))
    if any(str(user.target) in WITH_A_STATE and user.args[:1] == (node,) for user in node.users):
        return "torch.get_rng_state()"
    if isinstance(value, torch.Tensor):
        return _tensor(value, values)
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return repr(_number(value, values))
    return "torch.Generator()" if isinstance(value, torch.Generator) else repr(value)


def _tensor(value: torch.Tensor, values: Mapping[sympy.Symbol, int]) -> str:
    sizes, strides = ([_number(n, values) for n in extents] for extents in (value.shape, value.stride()))
    return f"tensor({sizes}, {strides}, {value.dtype}, {str(value.device)!r})"


def _number(value: Any, values: Mapping[sympy.Symbol, int]) -> Any:
    """The number that the tracer saw."""
    if not isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        return value
    known = value.node.expr.xreplace({s: sympy.Integer(n) for s, n in values.items()})
    known = known.xreplace({s: sympy.Integer(UNKNOWN) for s in known.free_symbols})
    kind = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}[type(value)]
    return kind(known)
