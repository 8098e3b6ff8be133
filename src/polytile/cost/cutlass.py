"""The analytical prior for CUTLASS's products: the formula of generated products (triton_matmul.py) with constants of its own
(product_constants.py). A cluster fetches its columns of B once, and multiplies whole blocks where it has no rows left."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from polytile.cost import triton_matmul
from polytile.cost.product_constants import COOPERATIVE, COOPERATIVE8, MIXED, PINGPONG, PINGPONG8, Constants
from polytile.cost.triton_matmul import ROW_MAJOR, Accesses
from polytile.matmul.triton.configs import Kind
from polytile.problem import Config
from polytile.runtime.cuda.device import DeviceFacts

CLUSTERED = 0.85
"""What of the L2 cache's traffic is left where two blocks share their columns of B."""


def cost(
    kind: Kind, config: Config, size: Mapping[str, int], device: DeviceFacts, accesses: Accesses = ROW_MAJOR
) -> float:
    """Seconds of one call."""
    return triton_matmul.cost(kind, config, size, device, accesses, _constants(kind, config))


def _constants(kind: Kind, config: Config) -> Constants:
    if config.get("down"):
        return triton_matmul.constants_of(kind)
    if config.get("bits"):
        return MIXED
    cooperative, pingpong = (COOPERATIVE8, PINGPONG8) if kind.itemsize == 1 else (COOPERATIVE, PINGPONG)
    own = pingpong if config["pingpong"] else cooperative
    return replace(own, cache=own.cache / CLUSTERED) if int(config["cluster"]) > 1 else own
