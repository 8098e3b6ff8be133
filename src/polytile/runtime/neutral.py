"""A state of torch in which the compiler's own work neither depends on the user's settings nor changes them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from polytile.runtime import background


@contextlib.contextmanager
def neutral() -> Iterator[None]:
    """Within the block: no gradients, no autocast, float32 and the CPU as defaults. Afterwards these are as they were,
    and so are the random generators.

    The background's thread leaves the default type and the generators alone, as they are the whole process's: what works there
    draws no numbers from torch's own generators, and names its types.
    """
    with contextlib.ExitStack() as stack:
        if not background.is_here():
            dtype = torch.get_default_dtype()
            devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else ()
            stack.enter_context(torch.random.fork_rng(devices=devices))
            stack.callback(torch.set_default_dtype, dtype)
            torch.set_default_dtype(torch.float32)
        stack.enter_context(torch.no_grad())
        stack.enter_context(torch._C._DisableAutocast())
        stack.enter_context(torch._C.DisableTorchFunction())  # torch.device() as a context is such a function mode
        yield
