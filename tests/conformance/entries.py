"""The entries that are checked: each operator of torch's own test database with each of three dtypes.

An entry is named "operator.dtype" ("add.float32"), or "operator[variant].dtype" where the database has several tests of
one operator. A few dtypes of the database are others on other devices; they are asked for the device at hand.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.testing._utils

DTYPES: tuple[torch.dtype, ...] = (torch.float32, torch.int64, torch.bool)

MARKS: dict[str, tuple[str, ...]] = {
    "linear algebra": ("linalg", "cholesky", "svd", "qr", "lu", "triangular_solve", "pinverse", "ormqr", "geqrf"),
    "convolution": ("conv",),
    "attention": ("attention",),
    "fft": ("fft", "stft"),
    "pooling": ("pool", "fold"),
    "upsampling": ("interpolate", "upsample", "grid_sample", "affine_grid", "pixel_"),
    "normalisation": ("_norm", "normalize"),
    "losses": ("loss", "cross_entropy", "kl_div"),
    "random": ("bernoulli", "dropout", "rand", "normal", "uniform", "multinomial", "cauchy", "exponential", "geometric"),
    "sorting": ("sort", "topk", "kthvalue", "median", "mode", "quantile", "unique", "msort"),
    "scans": ("cum", "logcumsumexp"),
    "matmul": ("mm", "matmul", "mv", "bmm", "addr", "dot", "einsum", "linear", "bilinear", "inner", "outer", "kron"),
    "indexing": ("index", "gather", "scatter", "take", "put", "embedding", "searchsorted", "bucketize", "select",
                 "masked_", "one_hot", "nonzero", "where", "getitem", "bincount", "hist"),
    "reductions": ("sum", "mean", "prod", "max", "min", "any", "all", "var", "std", "norm", "logsumexp", "count_",
                   "masked", "trapez", "aminmax", "equal"),
    "creation": ("arange", "linspace", "logspace", "empty", "ones", "zeros", "full", "eye", "new_", "_like", "scalar_tensor",
                 "signal", "tri", "vander", "complex", "polar"),
    "joins and shapes": ("cat", "stack", "pad", "flip", "roll", "split", "chunk", "view", "reshape", "squeeze", "permute",
                         "transpose", "expand", "repeat", "tile", "narrow", "unfold", "diag", "rot90", "flatten", "movedim",
                         "swap", "broadcast", "atleast", "strided", "block", "unbind", "slice", "contiguous", "clone", "copy",
                         "T", "mT", "H", "mH", "cartesian", "combinations", "meshgrid", "resize", "ravel", "item", "alias"),
}  # fmt: skip
"""Family → parts of the names of its operators; the first family with a match has it. Others are pointwise."""


@dataclass(frozen=True)
class Entry:
    """One operator and dtype. `info` is torch's OpInfo."""

    info: Any
    dtype: torch.dtype

    @property
    def operator(self) -> str:
        variant = self.info.variant_test_name
        return f"{self.info.name}[{variant}]" if variant else str(self.info.name)

    @property
    def name(self) -> str:
        return f"{self.operator}.{str(self.dtype).removeprefix('torch.')}"

    @property
    def family(self) -> str:
        return family_of(self.info.name)

    def gradients(self, device: str) -> bool:
        """Whether the operator has a backward for this dtype."""
        kind = torch.device(device).type
        return bool(self.info.supports_autograd) and self.dtype in self.info.supported_backward_dtypes(kind)

    def samples(self, device: str, limit: int) -> tuple[list[Any], int]:
        """At most `limit` of torch's sample inputs (all if 0), spread evenly over them, and how many there are."""
        torch.manual_seed(0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            found = list(self.info.sample_inputs(device, self.dtype, requires_grad=self.gradients(device)))
        return spread(found, limit), len(found)


def family_of(name: str) -> str:
    plain = name.removeprefix("nn.functional.").removeprefix("_refs.")
    for family, marks in MARKS.items():
        if any(plain == mark if len(mark) < 3 else mark in plain for mark in marks):
            return family
    return "pointwise"


def spread(values: Sequence[Any], limit: int) -> list[Any]:
    """`limit` of `values` (all if 0), the first and the last among them, the others evenly between."""
    if not limit or len(values) <= limit:
        return list(values)
    if limit == 1:
        return [values[0]]
    return [values[k * (len(values) - 1) // (limit - 1)] for k in range(limit)]


@functools.cache
def entries(device: str = "cpu") -> dict[str, Entry]:
    """All entries by name, in the database's order."""
    return {entry.name: entry for entry in _entries(torch.device(device).type)}


def _unseeded(operator: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    return operator(*args, **kwargs)


def _entries(kind: str) -> Iterator[Entry]:
    # torch's database runs random operators in a helper that saves and restores the generators, which Dynamo cannot
    # trace. Each arm of a check sets the seed itself, so here the helper is the operator alone.
    torch.testing._utils.wrapper_set_seed = _unseeded
    from torch.testing._internal.common_methods_invocations import op_db

    for info in op_db:
        for dtype in DTYPES:
            if dtype in info.supported_dtypes(kind):
                yield Entry(info, dtype)
