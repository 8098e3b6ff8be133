"""A state of torch in which the compiler's own work neither depends on the user's settings nor changes them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch


@contextlib.contextmanager
def neutral() -> Iterator[None]:
    """Within the block: no gradients, no autocast, float32 and the CPU as defaults. Afterwards these are as they were,
    and so are the random generators."""
    dtype = torch.get_default_dtype()
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.random.fork_rng(devices=devices))
        stack.enter_context(torch.no_grad())
        stack.enter_context(torch._C._DisableAutocast())
        stack.enter_context(torch._C.DisableTorchFunction())  # torch.device() as a context is such a function mode
        stack.callback(torch.set_default_dtype, dtype)
        torch.set_default_dtype(torch.float32)
        yield


__all__ = ["neutral"]
