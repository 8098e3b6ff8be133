"""Seeds on a GPU for kernels that draw their own random numbers: one a call, a launch for many of them.

A seed follows from the state of torch's default generator alone, its seed and its offset, and taking one moves the offset on
as an operator of eager's does: manual_seed, get_rng_state and fork_rng mean what they mean there. The offset is a number of
the host's, so that a call starts no kernel; that of a block of BLOCK seeds is started when the offset leaves the last block.

    offset 4·n   →   seed n % BLOCK of the block n // BLOCK

While a stream is captured the generator does not tell its offset. The first call of a capture then draws a block from the
generator itself, which every replay draws anew, and the capture's other calls on that stream take their seeds from it.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from polytile.errors import DeviceError
from polytile.runtime.cuda import driver

BLOCK = 1024
APART = 2
"""Elements from one seed to the next, which are 16 bytes: a kernel finds every seed aligned alike."""
STEP = 4
"""What offsets are multiples of."""
OWN = 0x9E3779B97F4A7C15
"""What tells the seeds' own generator from the one they follow, whose numbers at the same offset are the caller's."""

Fill = Callable[[torch.Generator | None], torch.Tensor]
"""A block's numbers, int64 [BLOCK · APART], from a generator, or from the default one."""


@dataclass
class Seeds:
    """The seeds that calls on one stream take, in order. `fill` starts the kernel of a block, `make` makes a generator of the
    same device, which is not possible during a capture."""

    fill: Fill
    make: Callable[[], torch.Generator]
    _own: torch.Generator | None = field(default=None, repr=False)
    _block: tuple[tuple[int, int], torch.Tensor] | None = field(default=None, repr=False)
    _captured: tuple[int, torch.Tensor, int] | None = field(default=None, repr=False)

    def following(self, generator: torch.Generator) -> torch.Tensor:
        """The seed, int64 [1], of the generator's state, whose offset is moved on."""
        number = generator.get_offset() // STEP
        generator.set_offset((number + 1) * STEP)
        which = generator.initial_seed(), number // BLOCK
        if self._block is None or self._block[0] != which:
            self._own = own = self._own or self.make()
            own.manual_seed((which[0] + OWN) % 2**64)
            own.set_offset(which[1] * STEP)
            self._block = which, self.fill(own)
        self._captured = None  # the memory is the recorded graph's alone
        return _one(self._block[1], number % BLOCK)

    def captured(self, capture: int) -> torch.Tensor:
        """The next seed, int64 [1], of the capture with this number."""
        if self._captured is None or self._captured[0] != capture or self._captured[2] == BLOCK:
            self._captured = capture, self.fill(None), 0
        _, numbers, taken = self._captured
        self._captured = capture, numbers, taken + 1
        return _one(numbers, taken)


def _one(numbers: torch.Tensor, position: int) -> torch.Tensor:
    return numbers.narrow(0, position * APART, 1)


_lock = threading.Lock()
_seeds: dict[tuple[int, int], Seeds] = {}


def next_seed(device: torch.device) -> torch.Tensor:
    """A seed, int64 [1] on the CUDA device `device`, for a call on its current stream."""
    index = device.index or 0
    stream = torch._C._cuda_getCurrentRawStream(index)
    with _lock, torch.cuda.device(index):
        seeds = _seeds.get((index, stream))
        if seeds is None:
            seeds = _seeds[index, stream] = _on(index)
        if torch.cuda.is_current_stream_capturing():
            return seeds.captured(_capture(stream))
        return seeds.following(torch.cuda.default_generators[index])


def _on(index: int) -> Seeds:
    """Seeds on the CUDA device `index`."""

    def fill(generator: torch.Generator | None) -> torch.Tensor:
        numbers = torch.empty(BLOCK * APART, dtype=torch.int64, device=f"cuda:{index}")
        return numbers.random_(generator=generator)

    return Seeds(fill, lambda: torch.Generator(f"cuda:{index}"))


def _capture(stream: int) -> int:
    """The number of the capture that the stream takes part in. Raises DeviceError where the driver does not tell."""
    status, number = ctypes.c_int(), ctypes.c_uint64()
    ask = driver.library().cuStreamGetCaptureInfo_v2
    code = ask(ctypes.c_void_p(stream), ctypes.byref(status), ctypes.byref(number), None, None, None)
    if code:
        raise DeviceError(f"the CUDA driver refused to tell of the capture of a stream: {driver.describe(code)}.")
    return number.value
