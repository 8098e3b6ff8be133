"""Twelve Triton kernels of the kinds that people publish, each written from its formula for `triton.autotune`.

A module has `make(size, device, dtype)`, which returns two functions without arguments: one runs the kernel, the other says by
torch's operators what is right. Both return tensors. `size` is 0 (seconds under Triton's interpreter), 1 or 2. Each module
imports the decorator in one line, DECORATOR, which `loaded` may exchange; nothing else of it changes.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType

import torch

DECORATOR = "from triton import autotune\n"
POLYTILES = "from polytile import autotune\n"

NAMES = (
    "vector_add", "softmax", "matmul", "layer_norm", "attention",
    "gated_linear_attention", "delta_rule", "chunk_cumsum", "short_convolution",
    "fused_experts", "rotary", "paged_cache",
)  # fmt: skip
"""As in Triton's tutorials, in collections of linear attention, and in servers of language models."""

Run = Callable[[], Sequence[torch.Tensor]]


def loaded(name: str, folder: Path, decorator: str = POLYTILES) -> ModuleType:
    """A module with another decorator, from a file in `folder`."""
    text = Path(__file__).with_name(f"{name}.py").read_text()
    if text.count(DECORATOR) != 1:
        raise ValueError(f"{name}.py has {text.count(DECORATOR)} lines {DECORATOR!r}; it has to have one.")
    path = folder / f"own_{name}.py"
    path.write_text(text.replace(DECORATOR, decorator))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module
