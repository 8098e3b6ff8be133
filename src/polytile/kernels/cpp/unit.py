"""A translation unit: the parts of the prelude that a body needs, this room's own helpers, and the body."""

from __future__ import annotations

import functools
from importlib import resources

from polytile.kernels.cpp.prelude import parts_of, prelude


@functools.cache
def _text(name: str) -> str:
    return resources.files("polytile.kernels.cpp").joinpath(name).read_text()


def preamble(body: str) -> str:
    """What must stand before `body`: prelude, helpers of generated loops, and the namespace opened."""
    helpers = _text("support.h")
    if "logaddexp(" in body:
        helpers += _text("support_logaddexp.h")
    return prelude(parts_of(helpers + body)) + helpers + "using namespace pt;\n"
