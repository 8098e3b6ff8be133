"""Panels of a constant B, packed once and read by the form tile_prepacked: [vectors of columns][steps of k][lanes][k in a lane].

One vector of columns runs along the whole of k and the next one follows it, so that the same panels serve register tiles of
any width and any depth of block: a weight that several kernels multiply by is packed once. A ragged last vector and a ragged
last step end in zeros. The bytes of int8 have their highest bit turned, as the instruction wants them (int8.py).
Panels of int8 that are multiplied by floats hold a single k in a lane, as they lie. Those of numbers of 4 bits hold 8 k in a lane
of 32 bits, in the order NIBBLES from the lowest bits on; the bits are what the number exceeds the least one by.
"""

from __future__ import annotations

import torch

from polytile.matmul.cpp.spec import NIBBLES, NIBBLES_TOGETHER

TOGETHER = {torch.float32: 1, torch.float64: 1, torch.bfloat16: 2, torch.int8: 4}
"""Number of k in one lane, by the type of the panels (bfloat16: in pairs)."""


def size_of(
    k: int, n: int, dtype: torch.dtype, lanes: int, together: int | None = None, nibbles_from: int | None = None
) -> int:
    """Bytes of the panels of a K x N matrix with `together` k in a lane, its type's own number if None; half of that with
    `nibbles_from`, see `make`."""
    if nibbles_from is not None:
        return -(-n // lanes) * lanes * k // 2
    together = together or TOGETHER[dtype]
    return -(-n // lanes) * -(-k // together) * lanes * together * dtype.itemsize


def make(matrix: torch.Tensor, lanes: int, together: int | None = None, nibbles_from: int | None = None) -> torch.Tensor:
    """The panels of `matrix` (K x N, any strides, a type of TOGETHER) for vectors of `lanes` sums, as bytes; a new tensor.
    `together` is as for `size_of`. With `nibbles_from` the matrix is of int8, its values are from that one to 15 more, K is a
    multiple of 8, and 4 bits are kept of each."""
    if nibbles_from is not None:
        return _nibbles(matrix, lanes, nibbles_from)
    k, n = matrix.shape
    together = together or TOGETHER[matrix.dtype]
    steps, vectors = -(-k // together), -(-n // lanes)
    if k % together or n % lanes:
        matrix = torch.nn.functional.pad(matrix, (0, vectors * lanes - n, 0, steps * together - k))
    split = matrix.unflatten(1, (vectors, lanes)).unflatten(0, (steps, together))
    out = torch.empty(vectors, steps, lanes, together, dtype=matrix.dtype, device=matrix.device)
    out.copy_(split.permute(2, 0, 3, 1))
    raw = out.view(torch.uint8).flatten()
    return raw.bitwise_xor_(0x80) if matrix.dtype == torch.int8 and together > 1 else raw


def _nibbles(matrix: torch.Tensor, lanes: int, least: int) -> torch.Tensor:
    k, n = matrix.shape
    vectors = -(-n // lanes)
    bits = torch.nn.functional.pad(matrix - least, (0, vectors * lanes - n)).view(torch.uint8)
    ordered = bits.view(k // NIBBLES_TOGETHER, NIBBLES_TOGETHER, vectors, lanes)[:, list(NIBBLES)].permute(2, 0, 3, 1)
    return (ordered[..., ::2] | ordered[..., 1::2] << 4).flatten()
