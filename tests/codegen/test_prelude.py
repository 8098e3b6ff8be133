"""The C++ prelude: its parts, conversions, bounds of memory, vectors, integers, random numbers, threads.

References are numpy, torch, or polytile's own Philox.
"""

from __future__ import annotations

import ctypes
import itertools
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from polytile.codegen.cpp import support
from polytile.codegen.cpp.prelude import ORDER, closure, part, parts_of, prelude
from polytile.ir import philox
from tests.codegen.prelude import BINARY, FLAGS, TARGETS, call, float_samples, pointer, same

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")



def test_every_part_compiles_alone_with_what_it_needs(tmp_path: Path) -> None:
    for name in ORDER:
        path = tmp_path / f"{name}.cpp"
        path.write_text(prelude([name]))
        command = ["g++", *FLAGS, "-Wall", "-Wextra", "-fsyntax-only", str(path)]
        done = subprocess.run(command, capture_output=True, text=True)
        assert done.returncode == 0 and not done.stderr, f"{name}: {done.stderr[:2000]}"


def test_the_prelude_includes_nothing() -> None:
    assert "#include" not in prelude(ORDER)


def test_every_name_that_a_part_gives_is_declared_in_it() -> None:
    for name in ORDER:
        body = part(name).text.split("// gives:")[1].split("\n", 1)[1]
        missing = [given for given in part(name).gives if given not in body]
        assert not missing, f"{name}.h does not declare {missing}"


def test_no_name_is_given_twice() -> None:
    given = [g for name in ORDER for g in part(name).gives]
    assert len(given) == len(set(given))


def test_a_source_brings_in_the_parts_it_uses_and_no_others() -> None:
    assert parts_of("auto y = exp(x); // not log(x)") == {"exp"}
    assert parts_of("store(p, sin<float, 16>(load<float, 16>(q)));") == {"memory", "trig"}
    assert "log" not in closure(["exp"]) and {"base", "exp", "log"} < set(closure(["hyperbolic"]))
    assert closure(["parallel", "barrier"]).index("barrier") < closure(["parallel", "barrier"]).index("parallel")


def test_an_unknown_part_is_named() -> None:
    with pytest.raises(ValueError, match="no part 'sine'"):
        prelude(["sine"])


# memory and conversions -----------------------------------------------------------------------------------------------

STORAGE = {
    "bf16": torch.bfloat16, "f16": torch.float16, "bool8": torch.bool, "i8": torch.int8, "u8": torch.uint8,
    "i16": torch.int16, "u16": torch.uint16, "i32": torch.int32, "u32": torch.uint32, "i64": torch.int64,
    "u64": torch.uint64, "float": torch.float32, "double": torch.float64,
}  # fmt: skip
CASTS = """\
template <class T, class S> void convert_all(const S* x, T* y, long n) {
  using To = stored<T>;  // bf16 and f16 are made by the store, the others by the cast
  for (long i = 0; i < n; i += L) {
    const long k = n - i < L ? n - i : L;
    const auto v = load_n<value_of<S>, L>(x + i, k);
    if constexpr (same<value_of<T>, To>) store_n(y + i, cast<T>(v), k);
    else store_n(y + i, cast<float>(v), k);
  }
}
""" + "".join(
    f'extern "C" void {s}_{t}(const {s}* x, {t}* y, long n) {{ convert_all<{t}>(x, y, n); }}\n'
    for s, t in itertools.product(STORAGE, STORAGE)
)


def values_for(source: torch.dtype, target: torch.dtype) -> torch.Tensor:
    """Values of `source` whose cast to `target` C++ defines."""
    rng = np.random.default_rng(5)
    if source == torch.bool:
        return torch.tensor([True, False] * 25)
    if source.is_floating_point:
        most = min(2.0**62, torch.finfo(source).max)
        span = (
            min(1e5, most)
            if target.is_floating_point or target == torch.bool
            else min(float(torch.iinfo(target).max), most)
        )
        low = 0.0 if not target.is_floating_point and target != torch.bool and torch.iinfo(target).min == 0 else -span
        x = np.concatenate([rng.uniform(low, span, 500), rng.uniform(max(low, -2), 2, 500), [0.0]])
        if target.is_floating_point or target == torch.bool:
            x = np.concatenate([x, [np.inf, -np.inf, np.nan, 65519.9, 65520, 1e-7, 6e-8, 2.98e-8, 1e-40, 3.4e38]])
        return torch.from_numpy(x).to(source)
    info = torch.iinfo(source)
    x64 = rng.integers(max(info.min, -(2**63)), min(info.max, 2**63 - 1), 500, dtype=np.int64, endpoint=True)
    small = rng.integers(max(info.min, -100), min(info.max, 100), 99)
    return torch.from_numpy(np.concatenate([x64, small, [0, max(info.min, -(2**63))]])).to(source)


@pytest.mark.parametrize(("march", "lanes"), TARGETS)
def test_conversions_agree_with_torch_for_every_pair(build: Any, march: str, lanes: int) -> None:
    library = build(CASTS, march, lanes)
    for (s, source), (t, target) in itertools.product(STORAGE.items(), STORAGE.items()):
        x = values_for(source, target)
        y = torch.zeros(len(x), dtype=target)
        call(library, f"{s}_{t}", x, y)
        same(y, x.to(target), f"{s} to {t}")


@pytest.mark.parametrize(("march", "lanes"), TARGETS)
def test_half_precision_matches_torch_bit_by_bit(build: Any, march: str, lanes: int) -> None:
    library = build(CASTS, march, lanes)
    floats = torch.from_numpy(float_samples(40009))
    for s, dtype in (("bf16", torch.bfloat16), ("f16", torch.float16)):
        every = torch.arange(65536, dtype=torch.int32).to(torch.uint16).view(dtype)
        decoded, encoded = torch.zeros(65536), torch.zeros(len(floats), dtype=dtype)
        call(library, f"{s}_float", every, decoded)
        same(decoded, every.float(), f"{s} to float")
        call(library, f"float_{s}", floats, encoded)
        same(encoded, floats.to(dtype), f"float to {s}")


GUARD = """
extern "C" void* mmap(void*, unsigned long, int, int, int, long);
extern "C" int mprotect(void*, unsigned long, int);
template <class S> long go() {
  constexpr long page = 4096;
  char* m = (char*)mmap(nullptr, 3 * page, 3, 0x22, -1, 0);
  mprotect(m, page, 0), mprotect(m + 2 * page, page, 0);  // a page of ours between two that may not be touched
  for (long n = 0; n <= L; ++n) {
    using T = value_of<S>;
    for (int side = 0; side < 2; ++side) {
      S* p = side ? (S*)(m + page) : (S*)(m + 2 * page) - n;
      store_n(p, iota<T, L>() + T(1), n);
      const V<T, L> v = load_n<T, L>(p, n);
      for (long i = 0; i < L; ++i)
        if (v[i] != (same<S, bool8> ? T(i < n) : T(i < n ? i + 1 : 0))) return 1 + n;
      if (hany(v != load_where<T, L>(p, first_n<i32, L>(n)))) return 200 + n;
      const V<T, L> last = load_where<T, L>(p - (L - n), ~first_n<i32, L>(L - n));
      for (long i = 0; i < L; ++i)
        if (last[i] != (i < L - n ? T(0) : v[i - (L - n)])) return 300 + n;
    }
    if (n > 0) {
      S* p = (S*)(m + 2 * page) - 3 * n + 2;
      store_strided_n(p, 3, iota<T, L>(), n);
      const V<T, L> v = load_strided_n<T, L>(p, 3, n), g = gather_mask<T, L>(p, iota<i64, L>() * 3, first_n<T, L>(n));
      if (hany(v != g)) return 100 + n;
    }
  }
  return 0;
}
"""


@pytest.mark.parametrize(("march", "lanes"), TARGETS)
def test_partial_loads_and_stores_touch_nothing_past_the_end(build: Any, march: str, lanes: int) -> None:
    library = build(
        GUARD + "".join(f'extern "C" long go_{s}() {{ return go<{s}>(); }}\n' for s in STORAGE), march, lanes
    )
    check_all = f"for s in {list(STORAGE)!r}: assert getattr(lib, 'go_' + s)() == 0, s"
    code = f"import ctypes\nlib = ctypes.CDLL({library._name!r})\n{check_all}\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)  # a fault takes the child alone
    assert done.returncode == 0, f"exit {done.returncode}: {done.stderr[-500:]}"


EVERY = """
template <class S, int D> long every() {
  using T = value_of<S>;
  constexpr long page = 4096;
  static char* const m = (char*)mmap(nullptr, 3 * page, 3, 0x22, -1, 0);
  mprotect(m, page, 0), mprotect(m + 2 * page, page, 0);
  for (long n = 1; n <= L; ++n)
    for (int side = 0; side < 2; ++side) {  // the last element is the page's last one, or the first one its first
      const long reach = (D < 0 ? -D : D) * (n - 1) + 1;
      S* const first = side ? (S*)(m + page) : (S*)(m + 2 * page) - reach;
      S* const p = D < 0 ? first + reach - 1 : first;
      for (long i = 0; i < reach; ++i) store<S, T, 1>(first + i, V<T, 1>(T(i % 100)));
      V<T, L> v = vload_every<T, L, D>(Part{}, p, n);
      if (n == L && side) v = vload_every<T, L, D>(Full{}, p, n);
      for (long i = 0; i < n; ++i)
        if (v[i] != T((D < 0 ? reach - 1 + D * i : D * i) % 100)) return 1000 * side + n;
    }
  return 0;
}
template <class S, int... D> long every_of() { long code = 0; ((code = code ? code : every<S, D>()), ...); return code; }
"""


@pytest.mark.parametrize(("march", "lanes"), [*TARGETS, ("native", 4)])
def test_elements_a_constant_apart_are_shuffled_and_nothing_beyond_them_is_read(build: Any, march: str, lanes: int) -> None:
    types, body = ("float", "double", "i8", "bf16"), GUARD.split("template")[0] + EVERY
    names = "".join(f'extern "C" long every_{s}() {{ return every_of<{s}, -1, 2, 3, 5, 8>(); }}\n' for s in types)
    library = build(support.text(body) + body + names, march, lanes)
    check_all = f"for s in {types!r}: assert (code := getattr(lib, 'every_' + s)()) == 0, (s, code)"
    code = f"import ctypes\nlib = ctypes.CDLL({library._name!r})\n{check_all}\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, f"exit {done.returncode}: {done.stderr[-500:]}"


INDEXED = """
extern "C" void strided(const float* x, float* y, long n) { store_strided(y, 2, load_strided<float, L>(x, 3)); }
extern "C" void indexed(const bf16* x, const i64* at, float* y, long n) {
  const auto index = load<i64, L>(at);
  scatter(y, index, gather<float, L>(x, index));
}
extern "C" void masked(const float* x, const i64* at, const bool8* on, float* y, long n) {
  const auto mask = load<i32, L>(on) != 0;
  const auto index = load<i64, L>(at);
  scatter_mask(y, index, gather_mask<float, L>(x, index, mask), mask_cast<double, L>(mask));
}
extern "C" void streamed(const float* x, float* y, long n) {
  store_stream(y, load<float, L>(x));
  store_stream(y + L + 1, load<float, L>(x));
}
"""


@pytest.mark.parametrize(("march", "lanes"), TARGETS)
def test_strided_and_indexed_elements_go_where_they_should(build: Any, march: str, lanes: int) -> None:
    library = build(INDEXED, march, lanes)
    x, y = torch.randn(100), torch.zeros(100)
    call(library, "strided", x, y)
    torch.testing.assert_close(y[: 2 * lanes : 2], x[: 3 * lanes : 3])
    at, want, y = torch.randperm(100)[:lanes], torch.zeros(100), torch.zeros(100)
    call(library, "indexed", x.bfloat16(), at, y)
    want[at] = x.bfloat16().float()[at]
    torch.testing.assert_close(y, want)
    on = torch.rand(lanes) < 0.5
    at, want, y = torch.where(on, at, 10**12), torch.zeros(100), torch.zeros(100)
    call(library, "masked", x, at, on, y)
    want[at[on]] = x[at[on]]
    torch.testing.assert_close(y, want)
    y = torch.zeros(100)
    call(library, "streamed", x, y)
    torch.testing.assert_close(y[:lanes], x[:lanes])
    torch.testing.assert_close(y[lanes + 1 : 2 * lanes + 1], x[:lanes])


# vectors --------------------------------------------------------------------------------------------------------------

VECTORS = """
template <int N> long go() {
  V<float, N> f = iota<float, N>(), g{};
  V<i64, N> i = iota<i64, N>();
  V<double, N> d = cast<double>(f);
  if (hsum(g) != 0 || hsum(f) != N * (N - 1) / 2 || hsum(d) != hsum(f) || hsum(i) != N * (N - 1) / 2) return 1;
  if (hmax(f) != N - 1 || hmin(d) != 0 || hmax(-i) != 0 || hprod(V<i32, N>(2)) != (N < 32 ? 1l << N : 0)) return 2;
  f[N - 1] = __builtin_nanf("");
  if (hmax(f) == hmax(f) || hmin(f) == hmin(f) || hany(isnan(f)) != true || hall(isnan(f)) != (N == 1)) return 3;
  f[N - 1] = N - 1;
  if (hany(select(i < N / 2, d, 2.0) != select(f < float(N / 2), d, V<double, N>(2.0)))) return 4;
  if (hany(mask_cast<i8, N>(d > 1.0) != mask_cast<i8, N>(i > 1))) return 5;
  if constexpr (N > 1) {
    if (hany(join(low(f), high(f)) != f) || high(f)[0] != N / 2 || low(i)[N / 2 - 1] != N / 2 - 1) return 6;
  }
  for (int n = 0; n <= N; ++n)
    if (hsum(as<i32>(first_n<float, N>(n))) != -n || hsum(as<i64>(first_n<double, N>(n))) != -n) return 7;
  f += 1, f *= 2, f -= f / 2;
  if (hany(f != iota<float, N>() + 1) || hany((i & 1) != (i - (i >> 1 << 1))) || hall(!f)) return 8;
  if (hany(round_to<bf16>(V<float, N>(1.001f)) != 1.0f) || hany(round_to<f16>(V<double, N>(1.0001)) != 1.0)) return 9;
  return 0;
}
"""


@pytest.mark.parametrize("march", [m for m, _ in TARGETS])
def test_vectors_of_every_lane_count_compute_mask_and_reduce(build: Any, march: str) -> None:
    counts = (1, 2, 4, 8, 16, 32, 64)
    library = build(VECTORS + "".join(f'extern "C" long go_{n}() {{ return go<{n}>(); }}\n' for n in counts), march)
    assert {n: getattr(library, f"go_{n}")() for n in counts} == dict.fromkeys(counts, 0)


INTEGERS = {"i8": torch.int8, "u8": torch.uint8, "i16": torch.int16, "i32": torch.int32, "i64": torch.int64}
INTEGER_PAIRS = "floordiv truncdiv remainder fmod shift_left shift_right minimum maximum pow".split()


def integer_reference(name: str, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    one = torch.where(b == 0, torch.ones_like(b), b)
    if name in ("floordiv", "truncdiv"):
        return torch.div(a, one, rounding_mode=name.removesuffix("div"))
    functions: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
        "remainder": torch.remainder, "fmod": torch.fmod, "shift_left": torch.bitwise_left_shift,
        "shift_right": torch.bitwise_right_shift, "minimum": torch.minimum, "maximum": torch.maximum, "pow": torch.pow,
    }  # fmt: skip
    return functions[name](a, one if name in ("remainder", "fmod") else b)


@pytest.mark.parametrize(("march", "lanes"), TARGETS)
def test_integers_divide_without_trapping_and_shift_as_torch(build: Any, march: str, lanes: int) -> None:
    source = "".join(BINARY.replace("FN2", f"FN_{t}").replace("TT", t) for t in INTEGERS)
    library = build(source + "".join(f"FN_{t}({n})\n" for t in INTEGERS for n in INTEGER_PAIRS), march, lanes)
    rng = np.random.default_rng(7)
    for t, dtype in INTEGERS.items():
        info = torch.iinfo(dtype)
        edges = [info.min, info.max, info.min + 1, 0, 1, 2, 3, 7, 63, 64] + ([-1, -2, -7] if info.min < 0 else [])
        pairs = [
            (x, y) for x, y in itertools.product(edges, edges) if (x, y) != (info.min, -1) and max(x, y) <= info.max
        ]
        draws = rng.integers(info.min, info.max, (2000, 2), endpoint=True)
        small = rng.integers(max(info.min, -100), 100, (2000, 2))
        a, b = torch.from_numpy(np.concatenate([np.array(pairs), draws, small])).to(dtype).unbind(1)
        a, b = a.contiguous(), b.contiguous()
        for name in INTEGER_PAIRS:
            if name == "pow":
                b = b.abs().clamp(0, 9)
            y = torch.zeros_like(a)
            call(library, f"{name}_{t}", a, b, y)
            same(y, integer_reference(name, a, b), f"{name} of {t}")
        lowest, minus, y = (
            torch.full((16,), info.min, dtype=dtype),
            torch.full((16,), -1).to(dtype),
            torch.zeros(16, dtype=dtype),
        )
        call(library, f"floordiv_{t}", lowest, minus, y)  # wraps; the point is that it returns


RANDOM = """
#define FILL(name, T, ...) extern "C" void name(const i64* at, T* y, long n) {                  \\
  for (long i = 0; i < n; i += L) store(y + i, __VA_ARGS__(SEED, load<i64, L>(at + i)));        \\
}
FILL(uniform, float, philox_uniform<L>)
FILL(normal, float, philox_normal<L>)
extern "C" void run(const i64* at, float* y, long n) {  // begins at each place of a counter in turn
  for (long i = 0; i < n; i += 4 * L)
    for (long k = 0; k < 4; ++k) store(y + k * n + i, philox_run<4 * L>(SEED, at[i] + k));
}
FILL(integer, i64, philox_int<L>)
FILL(short_integer, i32, philox_int<i32, L>)
"""


@pytest.mark.parametrize(("march", "lanes"), TARGETS)
def test_random_numbers_are_those_of_the_reference(build: Any, march: str, lanes: int) -> None:
    seed = 0x123456789ABCDEF
    library = build(f"constexpr i64 SEED = {seed};\n{RANDOM}", march, lanes)
    at = torch.cat([torch.arange(1024), torch.arange(1024) + 2**40, torch.arange(-1024, 0)])
    key = torch.tensor(seed)
    rows = {"uniform": torch.float32, "integer": torch.int64, "short_integer": torch.int32, "normal": torch.float32}
    for name, dtype in rows.items():
        y = torch.zeros(len(at), dtype=dtype)
        call(library, name, at, y)
        want = getattr(philox, name.removeprefix("short_"))(key, at, dtype)
        torch.testing.assert_close(y, want, rtol=1e-5 if name == "normal" else 0, atol=1e-6 if name == "normal" else 0)
    runs = torch.zeros(4, len(at))
    call(library, "run", at, runs)
    for k, got in enumerate(runs):
        assert torch.equal(got, philox.uniform(key, at + k, torch.float32))


# threads --------------------------------------------------------------------------------------------------------------

THREADS = """
extern "C" void members(long threads, long* out) {
  parallel(threads, [&](long t, long n) { out[2 * t] = t, out[2 * t + 1] = n; });
}
extern "C" void rounds(long threads, long* sums) {  // each round adds what all wrote in the round before
  long row[64] = {}, next[64] = {};
  parallel(threads, [&](long t, long n) {
    row[t] = 1;
    for (int k = 0; k < 10; ++k) {
      barrier();
      long s = 0;
      for (long i = 0; i < n; ++i) s += row[i];
      next[t] = s;
      barrier();
      row[t] = next[t];
    }
    sums[t] = row[t], sums[63] = n;
  });
}
extern "C" void nested(long threads, long inner, long* out) {
  parallel(threads, [&](long t, long) {
    parallel(inner, [&](long, long n) {
      barrier(), atomic_add(out + t, n);
      if (t == 0) barrier();
    });
  });
}
extern "C" void adding(long threads, float* f, double* d, i64* i, bf16* b, f16* h, bool8* any, u8* small) {
  parallel(threads, [&](long, long n) {
    for (int k = 0; k < 1200 / n; ++k) {
      atomic_add(f, 1.0f), atomic_add(d, 0.5), atomic_add(i, 2l), atomic_add(small, 1);
      if (k < 120 / n) atomic_add(b, 1.0f), atomic_add(h, 1.0f), atomic_add(any, 1);
    }
  });
}
"""


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_parallel_runs_each_member_once_and_barriers_hold(build: Any, threads: int) -> None:
    library = build(THREADS)
    out = torch.full((64,), -1)
    library.members(ctypes.c_long(threads), pointer(out))
    n = int(out[1])
    assert 1 <= n <= threads and out[: 2 * n].tolist() == [x for t in range(n) for x in (t, n)]
    assert (out[2 * n :] == -1).all()
    library.rounds(ctypes.c_long(threads), pointer(out))
    n = int(out[63])
    assert out[:n].tolist() == [n**10] * n


@pytest.mark.parametrize(("threads", "inner"), [(1, 1), (1, 2), (2, 1), (2, 2), (4, 3)])
def test_parallel_inside_parallel_does_not_deadlock(build: Any, threads: int, inner: int) -> None:
    out = torch.zeros(8, dtype=torch.int64)
    build(THREADS).nested(ctypes.c_long(threads), ctypes.c_long(inner), pointer(out))
    assert out[0] >= 1


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_atomic_additions_lose_nothing(build: Any, threads: int) -> None:
    dtypes = (torch.float32, torch.float64, torch.int64, torch.bfloat16, torch.float16, torch.bool, torch.uint8)
    rows = [torch.zeros(2, dtype=d) for d in dtypes]
    build(THREADS).adding(ctypes.c_long(threads), *(pointer(r) for r in rows))
    assert [r[0].item() for r in rows] == [1200, 600, 2400, 120, 120, True, 1200 % 256]
    assert not any(r[1].item() for r in rows), "a neighbour of the element was changed"
