"""A state of torch in which the compiler's own work neither depends on the user's settings nor changes them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from polytile.runtime import background


@contextlib.contextmanager
def neutral() -> Iterator[None]:
    """Disables gradients and autocast and sets the defaults to float32 and the CPU within the block. Restores these and
    the random generators afterwards.

    The background thread does not touch the default dtype and the generators, since they belong to the whole process.
    Work on that thread names its dtypes and draws nothing from torch's own generators.
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
