"""Generated register-blocked matmul kernels for CPUs.

In: a GemmSpec (dtypes, known unit strides), a GemmConfig (form and blocks), perhaps an epilogue in C++.
Out: `generate` gives the text of a translation unit (without the prelude), `configs` the ones worth trying, `valid` what can
run. How long it should take is in cost/cpp_matmul.py.
Callers: the C++ source of candidates; nothing here compiles, runs or measures anything.
"""

from __future__ import annotations

from polytile.matmul.cpp import amx, dot, narrow_panels, stream, tile
from polytile.matmul.cpp.common import C_TYPES as ELEMENTS
from polytile.matmul.cpp.forms import refusal, valid
from polytile.matmul.cpp.machine import Machine
from polytile.matmul.cpp.spec import RESULTS, STORAGE, GemmConfig, GemmSpec, converts
from polytile.matmul.cpp.tables import configs

_WITHOUT_TILES = {"stream": stream.generate, "dot": dot.generate}


def generate(
    spec: GemmSpec, config: GemmConfig, name: str, epilogue: str | None, lanes: int, panels_at: int = 0, scales_at: int = 2
) -> str:
    """The body of a translation unit that exports `name` (the native kernel ABI), to stand after the prelude.

    ptrs: A, B, [C without an epilogue], then the epilogue's own. sizes: batch, M, N, K, a_stride_b, a_stride_m,
    a_stride_k, b_stride_b, b_stride_k, b_stride_n, [c_stride_b, c_stride_m, c_stride_n without an epilogue], then the
    epilogue's own. `lanes` is a power of two; vectors of `lanes` sums are VACC. The form tile_prepacked reads B's panels
    (panels.py) from ptrs[panels_at]. The scales of a B with groups are at ptrs[scales_at], its zeros behind
    them; the ends of the groups of a grouped product are at ptrs[scales_at].

    An epilogue defines `static inline void epilogue(void* const* ptrs, const long* sizes, long batch, long m, long n,
    VACC acc, long count)`. It is called once for every vector of columns, of which the first `count` lanes count, with
    the kernel's whole ptrs and sizes: its own start at spec.leading_ptrs and spec.leading_sizes.

    Raises ValueError where spec, config and epilogue do not go together.
    """
    _check(spec, config, epilogue, lanes)
    if converts(spec, config):
        return narrow_panels.generate(spec, config, name, epilogue, lanes, panels_at, scales_at)
    if config.form == "tile_prepacked":
        return tile.generate(spec, config, name, epilogue, lanes, panels_at, scales_at)
    if config.form in _WITHOUT_TILES:
        return _WITHOUT_TILES[config.form](spec, config, name, epilogue, lanes, scales_at)
    return tile.generate(spec, config, name, epilogue, lanes, scales_at=scales_at)


def _check(spec: GemmSpec, config: GemmConfig, epilogue: str | None, lanes: int) -> None:
    if spec.dtype not in STORAGE or spec.out_dtype not in RESULTS:
        raise ValueError(f"C++ products take {', '.join(STORAGE)}; these are {spec.dtype} with results of {spec.out_dtype}.")
    if why := refusal(spec, config):
        raise ValueError(why)
    if config.amx and not amx.fits(spec, config, lanes):
        forms = ", ".join(amx.FORMS)
        raise ValueError(f"tiles of AMX are for bfloat16 in pairs and int8 in the forms {forms}; this is {spec.dtype}, {config}.")
    if (epilogue is not None) != spec.has_epilogue:
        given = "an epilogue was given" if epilogue is not None else "no epilogue was given"
        raise ValueError(f"GemmSpec.has_epilogue is {spec.has_epilogue} but {given}; make them agree.")
    if lanes < 2 or lanes & (lanes - 1):
        raise ValueError(f"lanes is {lanes}; vectors have a power of two of at least 2 lanes.")
    if config.form == "dot" and (config.nv & (config.nv - 1) or config.nv > lanes):
        raise ValueError(f"form 'dot' takes a power of two of at most {lanes} columns at once; nv is {config.nv}.")
    if config.form == "tile_prepacked" and (spec.batched or (spec.stored_b == "bfloat16" and not config.pairs)):
        raise ValueError("form 'tile_prepacked' is for products without a batch and, of bfloat16, for pairs of k.")


__all__ = ["ELEMENTS", "STORAGE", "GemmConfig", "GemmSpec", "Machine", "configs", "generate", "valid"]
