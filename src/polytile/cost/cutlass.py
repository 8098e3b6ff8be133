"""The analytical prior for CUTLASS's products: the formula of generated products (triton_matmul.py) with constants of its own,
and with what clusters and taking turns change.

Constants are CUTLASS's where they differ: its loops leave fewer cycles between steps, and blocks that take turns (pingpong) store
while others multiply, so that nothing is left between blocks. A cluster fetches its columns of B once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from polytile.cost import triton_matmul
from polytile.cost.triton_matmul import FITTED, Constants
from polytile.matmul.triton.configs import Kind
from polytile.problem import Config
from polytile.runtime.cuda.device import DeviceFacts

COOPERATIVE = replace(FITTED, groups=1.9, overhead=0.35e-6)
PINGPONG = replace(FITTED, groups=1.9, overhead=0.1e-6)
CLUSTERED = 0.85
"""What of the L2 cache's traffic is left where two blocks share their columns of B."""


def cost(kind: Kind, config: Config, size: Mapping[str, int], device: DeviceFacts) -> float:
    """Seconds of one call."""
    return triton_matmul.cost(kind, config, size, device, constants=_constants(config))


def terms(kind: Kind, config: Config, size: Mapping[str, int], device: DeviceFacts) -> dict[str, float]:
    """What `cost` is made of (triton_matmul.terms)."""
    return triton_matmul.terms(kind, config, size, device)


def _constants(config: Config) -> Constants:
    own = PINGPONG if config["pingpong"] else COOPERATIVE
    return replace(own, cache=own.cache / CLUSTERED) if int(config["cluster"]) > 1 else own
