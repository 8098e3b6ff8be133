"""What the code that Dynamo makes calls besides its graph, in forms that take less time.

Before the graph, this code asks whether to note itself in a profile, reads sizes of arguments, and makes a tensor of each number
that the graph takes as one. There is no front door under a profiler, sizes are read in C, and a number that has had a tensor
gets the same one again: Dynamo's graphs do no more with it than read its value.

The code finds these functions by way of global variables. `with_helpers` gives it other variables, which hold the modules below.
"""

from __future__ import annotations

import dis
import functools
import types
from typing import Any

import torch

from polytile.runtime import entry

NAMES = {"utils": "__import_polytile_dot_utils", "torch": "__import_polytile_dot_torch"}
"""The variables, in the globals of each function that has a front door."""

MOST_NUMBERS = 256
"""How many numbers keep their tensors."""


def with_helpers(code: types.CodeType, scope: dict[str, Any]) -> types.CodeType:
    """The code with variables of polytile's own, which are added to its globals, `scope`."""
    steps = list(dis.get_instructions(code))
    renamed: dict[str, str] = {}
    for name in {step.argval for step in steps if step.opname == "LOAD_GLOBAL"}:
        if scope.get(name) is torch._dynamo.utils:
            renamed[name] = NAMES["utils"]
        elif scope.get(name) is torch and _makes_tensors_alone(steps, name):
            renamed[name] = NAMES["torch"]
    if not renamed:
        return code
    scope.update(zip(NAMES.values(), (_utils(), _torch()), strict=True))
    return code.replace(co_names=tuple(renamed.get(name, name) for name in code.co_names))


def _makes_tensors_alone(steps: list[dis.Instruction], name: str) -> bool:
    """Whether a variable that holds torch is used for nothing but tensors of numbers, which Dynamo wants."""
    uses = [at for at, step in enumerate(steps) if step.argval == name]
    return all(steps[at].opname == "LOAD_GLOBAL" and steps[at + 1].argval == "_as_tensor_fullprec" for at in uses)


@functools.cache
def _utils() -> types.ModuleType:
    """Dynamo's module of helpers, in C where that does the same."""
    loaded, module = entry.module(), types.ModuleType(torch._dynamo.utils.__name__)
    vars(module).update(vars(torch._dynamo.utils))
    vars(module).update(
        record_pregraph_bytecode_enter=loaded.do_nothing,
        record_pregraph_bytecode_exit=loaded.do_nothing,
        call_size=loaded.size_of,
    )
    return module


@functools.cache
def _torch() -> types.ModuleType:
    module, kept = types.ModuleType("torch"), dict[float, torch.Tensor]()

    def as_tensor(value: Any) -> Any:
        """`torch._as_tensor_fullprec(value)`, without a further tensor for a float that has one. 0.0 and -0.0, which are equal,
        and NaN, which equals nothing, keep none."""
        if type(value) is not float or not value or value != value or torch._C._len_torch_dispatch_stack():
            return torch._as_tensor_fullprec(value)
        tensor = kept.get(value)
        if tensor is None:
            with torch.inference_mode(False):  # a later call may compute gradients
                tensor = torch._as_tensor_fullprec(value)
            if len(kept) < MOST_NUMBERS:
                kept[value] = tensor
        return tensor

    vars(module).update(_as_tensor_fullprec=as_tensor)
    return module
