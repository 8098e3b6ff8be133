"""What stands for a library call in a program, and needs something of the process in which it runs."""

from __future__ import annotations

from typing import Any

from polytile.dispatch.convolution import define_convolution
from polytile.matmul import packed_weights
from polytile.runtime.chosen_convolution import ChosenConvolution, ChosenGradients
from polytile.runtime.convolution import PackedConvolution


def prepare_target(target: Any) -> None:
    """Has an Extern's target follow the options in force, and choose among kernels of this process."""
    if isinstance(target, PackedConvolution):
        target.waits = packed_weights.waits_for_packing()
    elif isinstance(target, ChosenConvolution | ChosenGradients):
        define_convolution(target)
