"""What takes the place of parts of Triton's interpreter does what compiled kernels do."""

from __future__ import annotations

import numpy as np
import pytest

from polytile.codegen.triton import standins

tl = pytest.importorskip("triton.language")


def test_a_comparison_that_is_spread_over_a_block_is_a_mask() -> None:
    from triton.runtime.interpreter import TensorHandle, interpreter_builder

    standins.spread_as_blocks()
    compared = interpreter_builder.create_icmpSGE(*(TensorHandle(np.array([n]), tl.int64) for n in (3, 2)))
    mask = interpreter_builder.create_splat(tl.block_type(tl.int1, [4]), compared)
    assert mask.data.dtype == np.bool_ and mask.data.all() and mask.data.shape == (4,) and mask.dtype == tl.int1
