"""Every operation of the IR's table, in every type, gives what the interpreter gives."""

from __future__ import annotations

import itertools

import pytest
import torch

from polytile.ir import expr, ops
from tests.codegen.helpers import (
    BF16,
    BOOL,
    F16,
    F32,
    F64,
    FLOATS,
    I8,
    I16,
    I32,
    I64,
    INF,
    INTEGERS,
    NAN,
    P0,
    RELATIVE,
    S0,
    U8,
    Case,
    load,
    loop,
    op,
    random,
    store,
)  # fmt: skip

GENERATORS = ("cpp", "triton")

FLOAT_ONLY = set(
    "div reciprocal sqrt rsqrt exp exp2 expm1 log log2 log10 log1p sigmoid erf erfc erfinv sin cos tan asin acos atan atan2 sinh "
    "cosh tanh asinh acosh atanh lgamma digamma hypot copysign round_bf16 round_f16".split()
)
INTEGER_ONLY = {"shift_left", "shift_right"}
BITS = {"bitwise_and", "bitwise_or", "bitwise_xor", "bitwise_not"}
LOGICAL = {"logical_and", "logical_or", "logical_xor", "logical_not"}
COMPARISONS = {"eq", "ne", "lt", "le", "gt", "ge"}
ON_BOOL = (
    LOGICAL | BITS | COMPARISONS | {"isnan", "isinf", "signbit", "minimum", "maximum", "mul", "add", "abs", "sign"}
)
SEPARATE = {
    "round_e4m3", "round_e5m2",  # a GPU's (test_triton_float8.py)
    "where", "cast", "bitcast", "check_index", "check_divisor", "philox_uniform", "philox_normal", "philox_int",
}  # fmt: skip
OWN_TYPE = {
    "floordiv",
    "truncdiv",
    "remainder",
    "fmod",
    "hypot",
}  # the interpreter in float64 gives another number
SPECIALS = [
    0.0,
    -0.0,
    1.0,
    -1.0,
    0.5,
    -0.5,
    1.5,
    2.5,
    -2.5,
    3.0,
    -3.0,
    7.25,
    -7.75,
    88.5,
    1e-3,
    -1e-3,
    1e-6,
    INF,
    -INF,
    NAN,
]


def takes(name: str, dtype: torch.dtype) -> bool:
    if dtype == BOOL:
        return name in ON_BOOL
    if name in LOGICAL or name in SEPARATE:
        return False
    if dtype in FLOATS:
        return name not in INTEGER_ONLY | BITS
    return name not in FLOAT_ONLY


def inputs(dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Pairs of special values, then random ones; `z` is a third argument."""
    if dtype == BOOL:
        pairs = list(itertools.product([False, True], repeat=2)) * 9
    elif dtype in FLOATS:
        pairs = list(itertools.product(SPECIALS, repeat=2))
    else:
        info = torch.iinfo(dtype)
        edges = [
            0,
            1,
            2,
            3,
            5,
            7,
            8,
            31,
            63,
            info.max,
            info.max - 1,
            info.min,
            *([] if dtype == U8 else [-1, -2, -5, info.min + 1]),
        ]
        pairs = list(itertools.product(edges, repeat=2))
    x, y = (torch.tensor(column, dtype=dtype) for column in zip(*pairs, strict=True))
    x, y = torch.cat([x, random(200, dtype)]), torch.cat([y, random(200, dtype)])
    return {"x": x, "y": y, "z": random(len(x), dtype)}


def case_of(names: list[str], dtype: torch.dtype) -> Case:
    args = [load(name, P0, dtype) for name in "xyz"]
    stores, dtypes = [], dict.fromkeys("xyz", dtype)
    for name in names:
        definition = ops.definition(name)
        result = BOOL if definition.result == "bool" else dtype
        stores.append(store(f"o_{name}", P0, op(name, *args[: definition.arity], dtype=result)))
        dtypes[f"o_{name}"] = result
    return Case(loop(stores, {P0: S0}), dtypes)


def interpretable(name: str, dtype: torch.dtype) -> bool:
    """Whether torch has the operation in this type."""
    definition = ops.definition(name)
    try:
        definition.meaning(*[torch.ones(1, dtype=dtype)] * definition.arity)
    except RuntimeError:
        return False
    return True


@pytest.mark.parametrize("dtype", [F32, F64, *INTEGERS, BOOL], ids=str)
def test_every_operation(dtype: torch.dtype) -> None:
    names = [d.name for d in ops.TABLE if takes(d.name, dtype) and interpretable(d.name, dtype)]
    assert len(names) > 15
    values = inputs(dtype)
    if dtype not in FLOATS and "pow" in names:  # torch rejects negative exponents of integers
        values["y"] = torch.where(values["y"] < 0, 3, values["y"]).to(dtype) if "pow" in names else values["y"]
    count = len(values["x"])
    groups = [[n for n in names if n not in OWN_TYPE], [n for n in names if n in OWN_TYPE]]
    cases = [(case_of(group, dtype), precision) for group, precision in zip(groups, (F64, None), strict=True) if group]
    tolerance = {**RELATIVE, F32: 5e-6, F64: 1e-10}
    for case, precision in cases:
        outputs = {name: torch.zeros(count, dtype=kind) for name, kind in case.dtypes.items() if name.startswith("o_")}
        used = {k: v for k, v in values.items() if k in case.site.buffers}
        case.check({**used, **outputs}, {S0: count}, precision, tolerance, absolute=1e-37)


@pytest.mark.parametrize("source", [F32, F64, BF16, F16, *INTEGERS, BOOL], ids=str)
def test_conversions_and_selection(source: torch.dtype) -> None:
    """Every type to every other one, computed and stored; NaN counts as true; where() takes the side that the mask says."""
    x, y = load("x", P0, source), load("y", P0, source)
    stores, dtypes = [], {"x": source, "y": source, "m": BOOL}
    for target in [F32, F64, *INTEGERS, BOOL]:
        name = str(target).removeprefix("torch.")
        stores.append(store(f"o_{name}", P0, op("cast", x, dtype=target)))
        stores.append(store(f"s_{name}", P0, x))
        dtypes |= {f"o_{name}": target, f"s_{name}": target}
    for target in [BF16, F16]:
        name = str(target).removeprefix("torch.")
        stores.append(store(f"s_{name}", P0, x))
        dtypes[f"s_{name}"] = target
    stores.append(store("o_where", P0, op("where", load("m", P0, BOOL), x, y)))
    dtypes["o_where"] = source
    values = {"x": random(100, source, 0, 100), "y": random(100, source, 0, 100), "m": random(100, BOOL)}
    outputs = {name: torch.zeros(100, dtype=dtype) for name, dtype in dtypes.items() if name not in values}
    Case(loop(stores, {P0: S0}), dtypes).check({**values, **outputs}, {S0: 100}, None)


def test_nan_and_negative_zero_become_bool() -> None:
    x = load("x", P0, F32)
    case = Case(
        loop([store("o", P0, op("cast", x, dtype=BOOL)), store("s", P0, x)], {P0: S0}), {"x": F32, "o": BOOL, "s": BOOL}
    )
    values = torch.tensor([NAN, -0.0, 0.0, INF, 1e-40, -3.0])
    case.check({"x": values, "o": torch.zeros(6, dtype=BOOL), "s": torch.zeros(6, dtype=BOOL)}, {S0: 6})


@pytest.mark.parametrize(
    ("stored", "seen"), [(F32, I32), (I32, F32), (F64, I64), (I64, F64), (BF16, I16), (U8, I8), (BOOL, U8)]
)
def test_bits_are_read_as_another_type(stored: torch.dtype, seen: torch.dtype) -> None:
    """As a load of another type of the same width, and as an operation on the value."""
    stores = [store("o", P0, load("x", P0, seen))]
    dtypes = {"x": stored, "o": seen, "b": seen}
    if stored != BF16:
        stores.append(store("b", P0, op("bitcast", load("x", P0, stored), dtype=seen)))
    else:
        del dtypes["b"]
    values = {"x": random(37, stored)}
    outputs = {name: torch.zeros(37, dtype=seen) for name in dtypes if name != "x"}
    Case(loop(stores, {P0: S0}), dtypes).check({**values, **outputs}, {S0: 37}, None)


def test_random_numbers_are_those_of_the_reference() -> None:
    seed, offset = load("seed", 0, I64), op("add", load("offset", 0, I64), expr.index_value(P0))
    kinds = [("philox_uniform", F32), ("philox_normal", F32), ("philox_int", I64), ("philox_int", I32)]
    stores = [store(f"o{k}", P0, op(name, seed, offset, dtype=dtype)) for k, (name, dtype) in enumerate(kinds)]
    dtypes = {"seed": I64, "offset": I64, **{f"o{k}": dtype for k, (_, dtype) in enumerate(kinds)}}
    outputs = {f"o{k}": torch.zeros(77, dtype=dtype) for k, (_, dtype) in enumerate(kinds)}
    given = {"seed": torch.tensor([-1234567890123]), "offset": torch.tensor([1 << 40])}
    Case(loop(stores, {P0: S0}), dtypes).check({**given, **outputs}, {S0: 77}, None, absolute=1e-6)
