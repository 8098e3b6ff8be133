"""The types whose products CUTLASS has on Hopper, as data: what a kernel's text and its copies depend on."""

from __future__ import annotations

from dataclasses import dataclass

import torch

MOST_SUMS = 128
"""Maximum number of sums of a thread, which has 232 registers."""

PROMOTED_SUMS = 96
"""The same where a thread keeps a second set of sums."""


@dataclass(frozen=True)
class Number:
    """An element of A and B.

    name      its C++ type
    driver    its type as cuTensorMapEncodeTiled numbers them
    sums      the C++ type in which tensor cores add up
    along_k   tensor cores read both operands along k alone
    promoted  tensor cores add up in fewer bits than float32 has: each step along k is added to sums of full precision, which a
              thread keeps beside those of the step
    """

    name: str
    driver: int
    sums: str = "float"
    along_k: bool = False
    promoted: bool = False

    @property
    def most_sums(self) -> int:
        """Elements of C that a thread has room for."""
        return PROMOTED_SUMS if self.promoted else MOST_SUMS


NUMBERS = {
    torch.bfloat16: Number("cutlass::bfloat16_t", 9),
    torch.float16: Number("cutlass::half_t", 6),
    torch.float32: Number("float", 11, along_k=True),
    torch.int8: Number("int8_t", 0, "int", along_k=True),
    torch.float8_e4m3fn: Number("cutlass::float_e4m3_t", 0, along_k=True, promoted=True),
    torch.float8_e5m2: Number("cutlass::float_e5m2_t", 0, along_k=True, promoted=True),
}
"""float32 is rounded to TF32 on its way to shared memory. 8-bit types are copied as bytes."""
