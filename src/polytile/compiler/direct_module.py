"""The result of `polytile.compile` for a module: torch.compile's own wrapper, whose call goes straight to `forward` unless
something else has to happen.

torch's wrapper enters a context and goes through the two functions of every module's call, which takes 2 µs. Hooks,
`torch.jit.trace` and a compiled call of the wrapper itself need that; a call without any of them does not.
"""

from __future__ import annotations

from typing import Any

import torch
from torch._dynamo import OptimizedModule
from torch.nn.modules.module import _has_any_global_hook


class DirectModule(OptimizedModule):
    """An OptimizedModule with a short way to its forward."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        own = self.__dict__
        if (
            own["_forward_pre_hooks"] or own["_forward_hooks"] or own["_backward_pre_hooks"] or own["_backward_hooks"]
            or self._compiled_call_impl is not None or torch._C._get_tracing_state() or _has_any_global_hook()
        ):  # fmt: skip
            return super().__call__(*args, **kwargs)
        return own["forward"](*args, **kwargs)

    def __bool__(self) -> bool:
        """The truth value of the module, which Dynamo asks for where it traces a call. torch's wrapper raises TypeError for a
        module without a length."""
        return bool(self._orig_mod)


def direct(wrapper: OptimizedModule) -> None:
    """Gives torch's wrapper of a module the short way. What is set on the wrapper by name would be set on its module."""
    if type(wrapper) is OptimizedModule:
        object.__setattr__(wrapper, "__class__", DirectModule)
