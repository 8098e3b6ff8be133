"""Helper functions of generated sources: their text by name, and the helpers that each one calls."""

from __future__ import annotations

import re

import torch
from torch._subclasses.fake_tensor import unset_fake_temporarily

with unset_fake_temporarily():  # this module may be imported while a graph is traced
    BEYOND = int(torch.tensor(1e4, dtype=torch.float32, device="cpu").to(torch.float8_e4m3fn).view(torch.uint8))
"""The bits of torch's conversion of a number too large for float8_e4m3fn: 126, the largest number, or 127, NaN, in
torch 2.11."""

_COMBINE = {
    "pt_add": "a + b", "pt_mul": "a * b", "pt_or": "a | b", "pt_and": "a & b",
    "pt_max": "tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)",
    "pt_min": "tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)",
    "pt_int_max": "tl.maximum(a, b)", "pt_int_min": "tl.minimum(a, b)",
}  # fmt: skip

_ARG = """
def pt_{name}(a, ai, b, bi):
    nan_a, nan_b = a != a, b != b
    first = (a {sign} b) & (nan_b == 0) | nan_a & (nan_b == 0) | ((a == b) | nan_a & nan_b) & (ai < bi)
    return tl.where(first, a, b), tl.where(first, ai, bi)
"""
_EXTREME = """
def pt_cum{name}(a, ai, b, bi):
    last = (b {sign}= a) & (a == a) | (b != b)
    return tl.where(last, b, a), tl.where(last, bi, ai)
"""

_TEXTS = (
    *(f"def {name}(a, b):\n    return {value}" for name, value in _COMBINE.items()),
    *(_ARG.format(name=name, sign=sign) for name, sign in (("argmax", ">"), ("argmin", "<"))),
    *(_EXTREME.format(name=name, sign=sign) for name, sign in (("max", ">"), ("min", "<"))),
    """
def pt_like(number: tl.constexpr, x):
    return tl.full([], number, x.dtype)
""",
    """
def pt_logaddexp(a, b):
    high = tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)
    low = tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)
    apart = high + libdevice.log1p(libdevice.exp(low - high))
    return tl.where(high == low, high + pt_like(0.6931471805599453, a), apart) + tl.where(high == float("-inf"), high, 0.0)
""",
    """
def pt_add_two(a, b, c, d):
    return a + c, b + d
""",
    """
def pt_welford(parts, axis: tl.constexpr):
    mean, m2, n = parts
    total, weighted = tl.reduce((n, mean * n), axis, pt_add_two, keep_dims=True)
    centre = weighted / tl.where(total == 0, 1, total)
    off = mean - centre
    return centre, tl.sum(m2 + off * off * n, axis, keep_dims=True), total
""",
    """
def pt_welford_whole(parts):
    mean, m2, n = parts
    total, weighted = tl.reduce((tl.ravel(n), tl.ravel(mean * n)), 0, pt_add_two)
    centre = weighted / tl.where(total == 0, 1, total)
    off = mean - centre
    return centre, tl.sum(tl.ravel(m2 + off * off * n), 0), total
""",
    """
def pt_welford_two(mean, m2, n, other, other_m2, other_n):
    total = n + other_n
    share = other_n / tl.where(total == 0, 1, total)
    off = other - mean
    return mean + off * share, m2 + other_m2 + off * off * n * share, total
""",
    """
def pt_welford_step(mean, m2, x, part):
    delta = x - mean
    centre = mean + delta * part
    return centre, m2 + delta * (x - centre)
""",
    """
def pt_erf(x):
    size = tl.abs(x)
    p = 0.0007745670736767352 + size * (0.0014894866617396474 + size * (-0.000445523823145777 + size * 4.536087726592086e-05))
    p = 1.6279085874557495 + size * (0.9184163808822632 + size * (0.1484815925359726 + size * (-0.02825363539159298 + size * p)))
    return tl.where(size < 0.002, x * 1.1283791670955126, libdevice.copysign(1 - tl.exp2(-size * p), x))
""",
    """
def pt_gelu(x):
    size = tl.abs(x)
    p = 0.00013692540757 + size * (0.000186185832717 + size * (-3.93791145658e-05 + size * 2.83505482912e-06))
    p = 1.15110520134177 + size * (0.459208190441132 + size * (0.0524961704817821 + size * (-0.00706340884789825 + size * p)))
    return 0.5 * (x + size * (1 - tl.exp2(-size * p)))
""",
    """
def pt_gelu_by_tanh(x, z):
    return libdevice.fast_dividef(x, 1 + tl.exp2(z * -2.885390081777927))
""",
    """
def pt_logistic(x):
    return libdevice.fast_dividef(tl.full([], 1, tl.float32), 1 + tl.exp2(x * -1.4426950408889634))
""",
    *(
        f"""
def pt_round_{name}(x):
    pairs = tl.inline_asm_elementwise("cvt.rn.{kind}.f32 $0, $2, $1;", "=r,r,r", [x], dtype={of}, is_pure=True, pack=2)
    return pairs.to(tl.float32)
"""
        for name, kind, of in (("bf16", "bf16x2", "tl.bfloat16"), ("f16", "f16x2", "tl.float16"))
    ),
    f"""
def pt_float8e4nv(x):
    beyond = (pt_sign_bit(x) | tl.where(x == x, {BEYOND}, 127)).to(tl.uint8)
    near = x.to(tl.float8e4nv).to(tl.uint8, bitcast=True)
    return tl.where(tl.abs(x) <= 464, near, beyond).to(tl.float8e4nv, bitcast=True)
""",
    """
def pt_float8e5(x):
    beyond = (pt_sign_bit(x) | tl.where(x == x, 124, 127)).to(tl.uint8)
    near = x.to(tl.float8e5).to(tl.uint8, bitcast=True)
    return tl.where(tl.abs(x) < 61440, near, beyond).to(tl.float8e5, bitcast=True)
""",
    """
def pt_sign_bit(x):
    return (x.to(tl.int32, bitcast=True) >> 24) & 128
""",
    """
def pt_exp(x):
    return tl.exp2(x * 1.4426950408889634)
""",
    """
def pt_online_step(high, total, x):
    small = pt_exp(-tl.abs(x - high))
    return tl.maximum(high, x, propagate_nan=tl.PropagateNan.ALL), tl.where(x > high, total * small + 1, total + small)
""",
    """
def pt_online_run(high, total, x):
    last: tl.constexpr = len(x.shape) - 1
    most = tl.maximum(high, tl.reduce(x, last, pt_max), propagate_nan=tl.PropagateNan.ALL)
    return most, total * pt_exp(high - most) + tl.sum(pt_exp(x - tl.expand_dims(most, last)), last)
""",
    """
def pt_online(max_a, sum_a, max_b, sum_b):
    high = tl.maximum(max_a, max_b, propagate_nan=tl.PropagateNan.ALL)
    return high, sum_a * pt_exp(max_a - high) + sum_b * pt_exp(max_b - high)
""",
    """
def pt_cluster_barrier():
    tl.inline_asm_elementwise(
        "barrier.cluster.arrive.aligned; barrier.cluster.wait.aligned; // $0", "=r", [], tl.int32, is_pure=False, pack=1
    )
""",
    """
def pt_dsmem_init():
    tl.inline_asm_elementwise(
        '''
        .shared .align 8 .b64 dsmem_barriers[2];
        .shared .align 16 .b8 dsmem_values[2048];
        {
        .reg .pred first; .reg .b32 thread, bytes;
        mov.u32 thread, %tid.x;
        setp.eq.u32 first, thread, 0;
        mov.u32 bytes, dsmem_barriers;
        @first mbarrier.init.shared::cta.b64 [bytes], 1;
        @first mbarrier.init.shared::cta.b64 [bytes+8], 1;
        @first fence.mbarrier_init.release.cluster;
        barrier.cluster.arrive.aligned;
        barrier.cluster.wait.aligned;
        mov.u32 $0, 0;
        }
        ''', "=r", [], tl.int32, is_pure=False, pack=1
    )
""",
    """
def pt_dsmem_send(value, number: tl.constexpr, turn, split, SPLITS: tl.constexpr):
    tl.inline_asm_elementwise(
        '''
        {
        .reg .pred sends; .reg .b32 thread, odd, place, bytes;
        mov.u32 thread, %tid.x;
        setp.lt.u32 sends, thread, $5;
        and.b32 odd, $3, 1;
        mov.u32 place, dsmem_values;
        mad.lo.u32 place, odd, 1024, place;
        mad.lo.u32 place, $2, 64, place;
        mad.lo.u32 place, $4, 4, place;
        mov.u32 bytes, dsmem_barriers;
        mad.lo.u32 bytes, odd, 8, bytes;
        @sends mapa.shared::cluster.u32 place, place, thread;
        @sends mapa.shared::cluster.u32 bytes, bytes, thread;
        @sends st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [place], $1, [bytes];
        mov.u32 $0, 0;
        }
        ''', "=r,r,r,r,r,r", [value, number, turn, split.to(tl.int32), SPLITS], tl.int32, is_pure=False, pack=1
    )
""",
    """
def pt_dsmem_wait(numbers: tl.constexpr, turn, SPLITS: tl.constexpr):
    tl.inline_asm_elementwise(
        '''
        {
        .reg .pred first, all; .reg .b32 thread, odd, bytes, round;
        mov.u32 thread, %tid.x;
        setp.eq.u32 first, thread, 0;
        and.b32 odd, $2, 1;
        mov.u32 bytes, dsmem_barriers;
        mad.lo.u32 bytes, odd, 8, bytes;
        bfe.u32 round, $2, 1, 1;
        @first mbarrier.arrive.expect_tx.shared::cta.b64 _, [bytes], $1;
        waiting:
        mbarrier.try_wait.parity.shared::cta.b64 all, [bytes], round;
        @!all bra waiting;
        mov.u32 $0, 0;
        }
        ''', "=r,r,r", [4 * numbers * SPLITS, turn], tl.int32, is_pure=False, pack=1
    )
""",
    """
def pt_dsmem_read(which, number: tl.constexpr, turn):
    return tl.inline_asm_elementwise(
        '''
        {
        .reg .b32 odd, place;
        and.b32 odd, $3, 1;
        mov.u32 place, dsmem_values;
        mad.lo.u32 place, odd, 1024, place;
        mad.lo.u32 place, $2, 64, place;
        mad.lo.u32 place, $1, 4, place;
        ld.shared.f32 $0, [place];
        }
        ''', "=f,r,r,r", [which, number, turn], dtype=tl.float32, is_pure=False, pack=1
    )
""",
    """
def pt_cluster_arrive():
    tl.inline_asm_elementwise("barrier.cluster.arrive.aligned; // $0", "=r", [], tl.int32, is_pure=False, pack=1)
""",
    """
def pt_cluster_wait():
    tl.inline_asm_elementwise("barrier.cluster.wait.aligned; // $0", "=r", [], tl.int32, is_pure=False, pack=1)
""",
    """
def pt_opaque(x, zero):
    return tl.inline_asm_elementwise("xor.b32 $0, $1, $2;", "=r,r,r", [x, zero], x.dtype, is_pure=False, pack=2)
""",
    """
def pt_sqrt(x):
    return tl.sqrt_rn(x) if x.dtype == tl.float32 else tl.sqrt(x)
""",
    """
def pt_exact_div(a, b):
    return tl.div_rn(a, b) if a.dtype == tl.float32 else a / b
""",
    """
def pt_floordiv(a, b):
    rest = libdevice.fmod(a, b)
    quotient = pt_exact_div(a - rest, b) - ((rest != 0) & ((rest < 0) != (b < 0))).to(a.dtype)
    nearest = tl.floor(quotient)
    nearest += (quotient - nearest > 0.5).to(a.dtype)
    found = tl.where(quotient == 0, libdevice.copysign(quotient, pt_exact_div(a, b)), nearest)
    return tl.where(b == 0, pt_exact_div(a, b), found)
""",
    """
def pt_remainder(a, b):
    rest = libdevice.fmod(a, b)
    return tl.where((rest != 0) & ((rest < 0) != (b < 0)), rest + b, rest)
""",
    """
def pt_signbit(x):
    return x.to(tl.int32, bitcast=True) < 0 if x.dtype == tl.float32 else x.to(tl.int64, bitcast=True) < 0
""",
    """
def pt_int_truncdiv(a, b):
    return a // tl.where(b == 0, 1, b)
""",
    """
def pt_int_fmod(a, b):
    return a % tl.where(b == 0, 1, b)
""",
    """
def pt_int_floordiv(a, b):
    d = tl.where(b == 0, 1, b)
    return a // d - ((a % d != 0) & ((a < 0) != (d < 0))).to(a.dtype)
""",
    """
def pt_int_remainder(a, b):
    d = tl.where(b == 0, 1, b)
    rest = a % d
    return tl.where((rest != 0) & ((rest < 0) != (d < 0)), rest + d, rest)
""",
    """
def pt_int_pow(a, b):
    one = (a == a).to(a.dtype)
    result = tl.where(b < 0, (a == 1).to(a.dtype) + (a + 1 == 0).to(a.dtype) * (one - 2 * (b & 1)), one)
    for bit in range(a.dtype.primitive_bitwidth):
        result *= tl.where((b > 0) & ((b >> bit) & 1 != 0), a, one)
        a *= a
    return result
""",
    """
def pt_shift_left(a, b):
    far = (b < 0) | (b >= a.dtype.primitive_bitwidth)
    return tl.where(far, 0, a << tl.where(far, 0, b))
""",
    """
def pt_shift_right(a, b):
    last = a.dtype.primitive_bitwidth - 1
    return a >> tl.where((b < 0) | (b > last), last, b)
""",
    """
def pt_shift_right_unsigned(a, b):
    far = b >= a.dtype.primitive_bitwidth
    return tl.where(far, 0, a >> tl.where(far, 0, b))
""",
    """
def pt_philox(seed, offset):
    low, high = offset.to(tl.uint32), (offset >> 32).to(tl.uint32)
    return tl.philox(seed, low, high, low * 0, low * 0)
""",
    """
def pt_philox_uniform(seed, offset, T: tl.constexpr):
    w0, w1, w2, w3 = pt_philox(seed, offset >> 2)
    place = offset & 3
    word = tl.where(place < 2, tl.where(place == 0, w0, w1), tl.where(place == 2, w2, w3))
    return (word >> 8).to(T) * 5.9604644775390625e-08
""",
    """
def pt_philox_uniforms(seed, quarter, T: tl.constexpr):
    w0, w1, w2, w3 = pt_philox(seed, quarter)
    words = tl.join(tl.join(w0, w2), tl.join(w1, w3))
    return (words >> 8).to(T) * 5.9604644775390625e-08
""",
    """
def pt_philox_normal(seed, offset, T: tl.constexpr):
    w0, w1, w2, w3 = pt_philox(seed, offset)
    u, v = ((w0 >> 8) + 1).to(T) * 5.9604644775390625e-08, (w1 >> 8).to(T) * 5.9604644775390625e-08
    return pt_sqrt(-2.0 * libdevice.log(u)) * libdevice.cos(6.283185307179586 * v)
""",
    """
def pt_philox_int(seed, offset, T: tl.constexpr):
    w0, w1, w2, w3 = pt_philox(seed, offset)
    low, high = w0.to(tl.int64) & 0xFFFFFFFF, w1.to(tl.int64) & 0x7FFFFFFF
    return (low & 0x7FFFFFFF).to(T) if T == tl.int32 else ((high << 32) | low).to(T)
""",
    """
def pt_draw(seed, first, number, thread):
    low, high = first.to(tl.uint32), (first >> 32).to(tl.uint32)
    own, thread = low + number.to(tl.uint32), thread.to(tl.uint32)
    return tl.philox(seed, own, high + (own < low).to(tl.uint32), thread, thread * 0)
""",
    """
def pt_kept_words(seed, first, four, half, THREADS: tl.constexpr, LAST: tl.constexpr):
    step = four >> half
    turn = step // THREADS
    w0, w1, w2, w3 = pt_draw(seed, first, (turn << half) + (four & half), step - turn * THREADS)
    return w0 <= LAST, w1 <= LAST, w2 <= LAST, w3 <= LAST
""",
    """
def pt_kept_fours(seed, first, four, half, THREADS: tl.constexpr, LAST: tl.constexpr):
    k0, k1, k2, k3 = pt_kept_words(seed, first, four, half, THREADS, LAST)
    return tl.join(tl.join(k0, k2), tl.join(k1, k3))
""",
    """
def pt_kept_shifted(seed, first, e, fours, half, THREADS: tl.constexpr, LAST: tl.constexpr):
    four = (e >> 2) + fours
    k0, k1, k2, k3 = pt_kept_words(seed, first, four, half, THREADS, LAST)
    k4, k5, k6, _ = pt_kept_words(seed, first, four + 1, half, THREADS, LAST)
    by = e & 3
    even = tl.join(pt_one_of_four(by, k0, k1, k2, k3), pt_one_of_four(by, k2, k3, k4, k5))
    odd = tl.join(pt_one_of_four(by, k1, k2, k3, k4), pt_one_of_four(by, k3, k4, k5, k6))
    return tl.join(even, odd)
""",
    """
def pt_one_of_four(place, a, b, c, d):
    return tl.where(place < 2, tl.where(place == 0, a, b), tl.where(place == 2, c, d))
""",
    """
def pt_kept(seed, first, e, width, THREADS: tl.constexpr, LAST: tl.constexpr):
    step = e >> ((width > 1).to(tl.int32) + (width > 2).to(tl.int32) + (width > 4).to(tl.int32))
    turn = step // THREADS
    place = tl.where(width > 1, e & (width - 1), turn & 3)
    number = tl.where(width > 1, turn * tl.maximum(1, width // 4) + (place >> 2), turn >> 2)
    w0, w1, w2, w3 = pt_draw(seed, first, number, step - turn * THREADS)
    return pt_one_of_four(place & 3, w0, w1, w2, w3) <= LAST
""",
    """
def pt_digamma(x):
    return pt_digamma_wide(x.to(tl.float64)).to(x.dtype)
""",
    """
def pt_digamma_wide(x):
    low = x < 0.5
    y = tl.where(low, 1 - x, x)
    total = tl.where(y == y, 0.0, y)
    for step in tl.static_range(8):
        near = y < 8
        total -= tl.where(near, 1 / y, 0.0)
        y = tl.where(near, y + 1, y)
    z = 1 / (y * y)
    tail = pt_like(691 / 32760, z) - z * pt_like(1 / 12, z)
    tail = pt_like(1 / 240, z) - z * (pt_like(1 / 132, z) - z * tail)
    tail = z * (pt_like(1 / 12, z) - z * (pt_like(1 / 120, z) - z * (pt_like(1 / 252, z) - z * tail)))
    total += libdevice.log(y) - 0.5 / y - tail
    whole = (x == tl.floor(x)) & (x < 0)
    turn = x - libdevice.trunc(x)
    pi = pt_like(3.141592653589793, x)
    mirrored = total - pi / libdevice.tan(pi * turn)
    value = tl.where(low, mirrored, total)
    value = tl.where(x == 0, libdevice.copysign(pt_like(float("inf"), x), x * -1.0), value)
    return tl.where(whole, float("nan"), value)
""",
)

_NAME = re.compile(r"\bpt_\w+")
TEXTS: dict[str, str] = {_NAME.findall(text)[0]: f"@triton.jit\n{text.strip()}\n" for text in _TEXTS}


def needed(body: str) -> str:
    """The helpers that `body` calls, directly or indirectly, in the table's order."""
    called: set[str] = set()
    waiting = set(_NAME.findall(body))
    while waiting:
        called |= waiting
        waiting = {name for known in waiting for name in _NAME.findall(TEXTS[known])} - called
    return "\n\n".join(text for name, text in TEXTS.items() if name in called)
