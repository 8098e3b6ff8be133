"""Generated matmul kernels: every form, layout, dtype and tail against float64; epilogues; threads; the prior."""

from __future__ import annotations

import ctypes
import functools
import glob
import itertools
import mmap
import os
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from polytile.cost.cpp_matmul import cost
from polytile.matmul.cpp import GemmConfig, GemmSpec, Machine, configs, generate, valid
from polytile.matmul.cpp.forms import FORM_LAYOUTS

FLAGS = (
    "-O2 -std=c++17 -fPIC -shared -march=native -fno-math-errno -fno-trapping-math -Wall -Wno-unused-function".split()
)
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64, "int8": torch.int8}
LANES = {"float32": 16, "bfloat16": 16, "float64": 8, "int8": 16}
TOLERANCE = {"float32": 1e-5, "bfloat16": 2.0**-8, "float64": 1e-13}
FOLDER = tempfile.TemporaryDirectory(prefix="polytile-gemm-")
SIZES = (1, 2, 3, 17, 63, 65, 200)

# Blocks small enough that every loop of every form turns more than once at these sizes.
SMALL_BLOCKS = {
    "tile_packed": GemmConfig("tile_packed", 6, 4, kc=64, mc=24, nc=128),
    "tile_direct": GemmConfig("tile_direct", 8, 3, kc=64, mc=24, nc=128),
    "splitk": GemmConfig("splitk", 6, 2, kc=64, mc=24, nc=128),
    "stream": GemmConfig("stream", 5, 1, kc=64, nc=64, unroll=8),
    "dot": GemmConfig("dot", 6, 4, kc=64, mc=24, unroll=2),
    "small": GemmConfig("small", 8, 2, kc=64),
}
FORMS = tuple(SMALL_BLOCKS)
IN_PAIRS = ("tile_packed", "tile_direct", "splitk", "dot")


def in_pairs(config: GemmConfig) -> GemmConfig:
    """Its form multiplying two k at once, in tiles of as many vectors as are brought side by side."""
    return replace(config, pairs=True, nv=4 if config.form == "tile_direct" else config.nv)


@functools.cache
def openmp() -> ctypes.CDLL:
    """Torch's own OpenMP runtime, whose GOMP_parallel the kernels use."""
    found = glob.glob(os.path.join(os.path.dirname(torch.__file__), "lib", "libgomp*")) or ["libgomp.so.1"]
    return ctypes.CDLL(found[0], ctypes.RTLD_GLOBAL)


@functools.cache
def compiled(text: str, name: str) -> Callable[..., int]:
    openmp()
    path = Path(FOLDER.name) / f"{abs(hash(text))}.cpp"
    path.write_text(text)
    subprocess.run(["g++", *FLAGS, str(path), "-o", str(path.with_suffix(".so"))], check=True)
    function = getattr(ctypes.CDLL(str(path.with_suffix(".so"))), name)
    function.restype = ctypes.c_long
    return function


def kernel(
    spec: GemmSpec, config: GemmConfig, epilogue: str | None = None, lanes: int | None = None
) -> Callable[..., int]:
    text = generate(spec, config, "gemm_under_test", epilogue, lanes or LANES[spec.dtype])
    assert "#include" not in text
    return compiled(text, "gemm_under_test")


def call(
    function: Callable[..., int],
    a: torch.Tensor,
    b: torch.Tensor,
    rest: Sequence[torch.Tensor],
    ints: Sequence[int],
    threads: int,
) -> int:
    tensors = (a, b, *rest)
    sizes = (a.shape[0], a.shape[1], b.shape[2], a.shape[2], *a.stride(), *b.stride(), *ints)
    ptrs = (ctypes.c_void_p * len(tensors))(*(t.data_ptr() for t in tensors))
    return function(ptrs, (ctypes.c_long * len(sizes))(*sizes), ctypes.c_long(threads))


def matmul(
    function: Callable[..., int], a: torch.Tensor, b: torch.Tensor, threads: int = 1, dtype: torch.dtype | None = None
) -> torch.Tensor:
    dtype = dtype or a.dtype
    unwritten = float("nan") if dtype.is_floating_point else -12345
    c = torch.full((a.shape[0], a.shape[1], b.shape[2]), unwritten, dtype=dtype)
    assert call(function, a, b, (c,), c.stride(), threads) == 0
    return c


def matrix(batch: int, rows: int, cols: int, layout: str, dtype: torch.dtype) -> torch.Tensor:
    """batch x rows x cols random numbers with unit stride along "rows", "cols" or neither ("any")."""
    if layout == "cols":
        return torch.randn(batch, rows, cols, dtype=torch.float64).to(dtype)
    if layout == "rows":
        return torch.randn(batch, cols, rows, dtype=torch.float64).to(dtype).transpose(1, 2)
    return torch.randn(batch, rows, cols, 2, dtype=torch.float64).to(dtype)[..., 1]


def operands(
    spec: GemmSpec, batch: int, m: int, n: int, k: int, a_layout: str | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    dtype = DTYPES[spec.dtype]
    a = matrix(batch, m, k, {"k": "cols", "m": "rows", "any": "any"}[a_layout or spec.a_layout], dtype)
    return a, matrix(batch, k, n, {"n": "cols", "k": "rows", "any": "any"}[spec.b_layout], dtype)


def assert_close(c: torch.Tensor, a: torch.Tensor, b: torch.Tensor, tolerance: float) -> None:
    """Every element within `tolerance` of float64, relative to the sum of magnitudes (bfloat16: to the result)."""
    exact, magnitude = a.double() @ b.double(), a.double().abs() @ b.double().abs()
    scale = exact.abs() + 0.01 * magnitude if c.dtype == torch.bfloat16 else magnitude
    error = (c.double() - exact).abs()
    assert not (error > tolerance * scale).any() and not error.isnan().any(), error.max()


def layouts(form: str) -> list[tuple[str, str]]:
    return list(itertools.product(("k", "m", "any"), FORM_LAYOUTS[form]))


@pytest.mark.parametrize(("form", "a_layout", "b_layout"), [(f, a, b) for f in FORMS for a, b in layouts(f)])
def test_every_form_and_layout_is_right_at_odd_sizes(form: str, a_layout: str, b_layout: str) -> None:
    torch.manual_seed(0)
    spec = GemmSpec(a_layout=a_layout, b_layout=b_layout)
    function = kernel(spec, SMALL_BLOCKS[form])
    shapes = [s for i, s in enumerate(itertools.product(SIZES, SIZES, (0, *SIZES))) if i % 13 == 0] + [(200, 200, 200)]
    for number, (m, n, k) in enumerate(shapes):
        a, b = operands(spec, 1, m, n, k)
        assert_close(
            matmul(function, a, b, threads=4 if number % 10 == 9 else 1 + number % 2), a, b, TOLERANCE["float32"]
        )


@pytest.mark.parametrize(
    ("dtype", "a_layout", "b_layout"),
    [
        ("float32", "k", "n"),
        ("float32", "any", "k"),
        ("bfloat16", "m", "n"),
        ("bfloat16", "k", "k"),
        ("float64", "m", "k"),
        ("float64", "k", "any"),
    ],
)
def test_every_config_of_the_tables_is_right(dtype: str, a_layout: str, b_layout: str) -> None:
    torch.manual_seed(1)
    spec = GemmSpec(dtype, a_layout, b_layout, batched=True, out_dtype=dtype)
    shapes = ((1, 17, 65, 200), (3, 3, 63, 65), (2, 1, 1, 1), (1, 65, 200, 1030))
    for config in configs(spec, LANES[dtype]):
        function = kernel(spec, config)
        for threads, (batch, m, n, k) in enumerate(shapes, 1):
            a, b = operands(spec, batch, m, n, k)
            assert_close(matmul(function, a, b, threads), a, b, TOLERANCE[dtype])


@pytest.mark.parametrize("form", FORMS)
def test_a_long_product_is_off_by_less_than_twice_as_much_as_the_librarys(form: str) -> None:
    """Of the root mean square of all errors. Sums of the whole of K in a row would be off by 7 times as much."""
    torch.manual_seed(2)
    spec = GemmSpec(a_layout="k", b_layout=FORM_LAYOUTS[form][0])
    config = max((c for c in configs(spec, LANES["float32"]) if c.form == form), key=lambda config: config.kc)
    for m, n, k in ((1, 512, 500), (16, 96, 1000), (16, 96, 16_000)):
        a, b = operands(spec, 1, m, n, k)
        exact = a.double() @ b.double()
        errors = [float((c.double() - exact).square().mean().sqrt()) for c in (matmul(kernel(spec, config), a, b), a @ b)]
        assert errors[0] < 2 * errors[1]


@pytest.mark.parametrize(("form", "lanes"), list(zip(FORMS, (4, 8, 4, 4, 8, 8), strict=True)))
def test_narrower_vectors_are_right(form: str, lanes: int) -> None:
    spec = GemmSpec(b_layout=FORM_LAYOUTS[form][0])
    function = kernel(spec, SMALL_BLOCKS[form], lanes=lanes)
    for m, n, k in ((1, 1, 1), (17, 63, 65), (65, 3, 200)):
        a, b = operands(spec, 1, m, n, k)
        assert_close(matmul(function, a, b, 2), a, b, TOLERANCE["float32"])


@pytest.mark.parametrize("form", FORMS)
def test_batch_items_may_be_strided_or_expanded(form: str) -> None:
    spec = GemmSpec(b_layout=FORM_LAYOUTS[form][0], batched=True)
    function = kernel(spec, SMALL_BLOCKS[form])
    for threads in (1, 2, 4):
        a, b = operands(spec, 5, 17, 65, 63)
        assert_close(matmul(function, a, b, threads), a, b, TOLERANCE["float32"])
        assert_close(matmul(function, a[::2], b[1:4], threads), a[::2], b[1:4], TOLERANCE["float32"])
        shared = b[2:3].expand(5, -1, -1)
        assert_close(matmul(function, a, shared, threads), a, shared, TOLERANCE["float32"])
        assert_close(matmul(function, a[:1].expand(5, -1, -1), b, threads), a[:1].expand(5, -1, -1), b, 1e-5)


COUNTING_EPILOGUE = """
static inline void epilogue(void* const* ptrs, const long* sizes, long batch, long m, long n, VACC acc, long count) {
  float* out = (float*)ptrs[2] + (batch * sizes[1] + m) * sizes[10] + n;   // sizes[10]: elements in a row
  int* times = (int*)ptrs[3] + (batch * sizes[1] + m) * sizes[10] + n;
  for (long i = 0; i < count; ++i) out[i] = 2 * acc[i] + ((const float*)ptrs[4])[n + i], ++times[i];
}
"""


@pytest.mark.parametrize("form", FORMS)
def test_an_epilogue_sees_every_element_exactly_once(form: str) -> None:
    spec = GemmSpec(b_layout=FORM_LAYOUTS[form][0], batched=True, has_epilogue=True)
    function = kernel(spec, SMALL_BLOCKS[form], COUNTING_EPILOGUE)
    assert (spec.leading_ptrs, spec.leading_sizes) == (2, 10)
    for (batch, m, n, k), threads in itertools.product(((1, 1, 1, 1), (3, 17, 65, 200), (1, 65, 200, 0)), (1, 2, 4)):
        a, b = operands(spec, batch, m, n, k)
        out, times = torch.zeros(batch, m, n + 3), torch.zeros(batch, m, n + 3, dtype=torch.int32)
        bias = torch.randn(n)
        assert call(function, a, b, (out, times, bias), (n + 3,), threads) == 0
        assert (times[..., :n] == 1).all() and (times[..., n:] == 0).all() and (out[..., n:] == 0).all()
        torch.testing.assert_close(out[..., :n].double(), 2 * (a.double() @ b.double()) + bias, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("form", FORMS)
def test_the_result_may_have_any_strides_and_nothing_else_is_written(form: str) -> None:
    spec = GemmSpec(b_layout=FORM_LAYOUTS[form][0])
    function = kernel(spec, SMALL_BLOCKS[form])
    a, b = operands(spec, 1, 17, 70, 65)
    for place in (
        torch.full((1, 17, 70, 2), 7.0),
        torch.full((1, 17, 83), 7.0),
        torch.full((1, 70, 17), 7.0).transpose(1, 2),
    ):
        c = place[..., 0] if place.dim() == 4 else place[..., :70]
        assert call(function, a, b, (c,), c.stride(), 2) == 0
        assert_close(c, a, b, TOLERANCE["float32"])
        if place.shape != c.shape:
            assert (place[..., 1] == 7).all() if place.dim() == 4 else (place[..., 70:] == 7).all()


@pytest.mark.parametrize("form", FORMS)
def test_empty_sizes_write_nothing_and_an_empty_k_gives_zeros(form: str) -> None:
    spec = GemmSpec(b_layout=FORM_LAYOUTS[form][0], batched=True)
    function = kernel(spec, SMALL_BLOCKS[form])
    canary = torch.full((64,), 5.0)
    for batch, m, n in ((0, 3, 3), (2, 0, 3), (2, 3, 0)):
        assert call(function, torch.zeros(batch, m, 4), torch.zeros(batch, 4, n), (canary,), (0, 0, 1), 2) == 0
        assert (canary == 5).all()
    assert (matmul(function, torch.zeros(2, 3, 0), torch.zeros(2, 0, 65), 2) == 0).all()


class Guarded:
    """Tensors whose last element is the last of a page, with a page after it that cannot be touched."""

    def __init__(self) -> None:
        self.kept: list[mmap.mmap] = []

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """`tensor` (dense in some order of its axes) copied there with the same strides."""
        elements = tensor.numel()
        size = elements * tensor.element_size()
        pages = (size + mmap.PAGESIZE - 1) // mmap.PAGESIZE
        memory = mmap.mmap(-1, (pages + 1) * mmap.PAGESIZE)
        self.kept.append(memory)
        whole = torch.frombuffer(memory, dtype=torch.uint8)
        end = whole.data_ptr() + pages * mmap.PAGESIZE
        assert ctypes.CDLL(None).mprotect(ctypes.c_void_p(end), mmap.PAGESIZE, 0) == 0
        start = pages * mmap.PAGESIZE - size
        copy = torch.frombuffer(memory, dtype=tensor.dtype, count=elements, offset=start)
        return copy.as_strided(tensor.shape, tensor.stride()).copy_(tensor)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("form", FORMS)
def test_nothing_is_read_or_written_past_the_end(form: str, dtype: str) -> None:
    guarded = Guarded()
    for pairs in {False, dtype == "bfloat16" and form in IN_PAIRS}:
        layouts_of_b = [layout for layout in FORM_LAYOUTS[form] if layout != "any"]
        spec = GemmSpec(dtype, "m", layouts_of_b[-1]) if pairs else GemmSpec(dtype, "k", layouts_of_b[0])
        spec = replace(spec, out_dtype=dtype)
        config = in_pairs(SMALL_BLOCKS[form]) if pairs else SMALL_BLOCKS[form]
        function = kernel(spec, replace(config, pack_a=form == "tile_packed"))
        for m, n, k in ((1, 1, 1), (3, 17, 65), (17, 65, 63), (65, 31, 200)):
            a, b = (guarded.copy(t) for t in operands(spec, 1, m, n, k))
            c = guarded.copy(torch.zeros(1, m, n, dtype=DTYPES[dtype]))
            assert call(function, a, b, (c,), c.stride(), 2) == 0
            assert_close(c, a, b, TOLERANCE[dtype])


@pytest.mark.parametrize("form", FORMS)
def test_bfloat16_is_rounded_once_at_the_end(form: str) -> None:
    """With exact products and sums the only error is the final rounding, so the result is float64's, rounded."""
    torch.manual_seed(2)
    spec = GemmSpec("bfloat16", "k", FORM_LAYOUTS[form][0], out_dtype="bfloat16")
    for config in [SMALL_BLOCKS[form], *([in_pairs(SMALL_BLOCKS[form])] if form in IN_PAIRS else [])]:
        function = kernel(spec, config)
        a = torch.randint(-128, 128, (1, 17, 201)).to(torch.bfloat16)
        b = torch.randint(-128, 128, (1, 201, 65)).to(torch.bfloat16)
        b = b.transpose(1, 2).contiguous().transpose(1, 2) if spec.b_layout == "k" else b
        assert torch.equal(matmul(function, a, b, 2), (a.double() @ b.double()).to(torch.bfloat16))


def test_out_dtype_may_differ_from_the_operands() -> None:
    for dtype, out in (
        ("bfloat16", "float32"),
        ("float32", "bfloat16"),
        ("float64", "float32"),
        ("float32", "float64"),
    ):
        spec = GemmSpec(dtype, out_dtype=out)
        a, b = operands(spec, 1, 17, 65, 63)
        c = matmul(kernel(spec, SMALL_BLOCKS["tile_packed"]), a, b, 2, DTYPES[out])
        assert c.dtype == DTYPES[out]
        assert_close(c, a, b, TOLERANCE[out if out == "bfloat16" else "float32"])


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_infinities_and_nan_stay_where_they_belong(form: str, dtype: str) -> None:
    spec = GemmSpec(dtype, b_layout=FORM_LAYOUTS[form][0], out_dtype=dtype)
    a, b = operands(spec, 1, 17, 65, 63)
    a[0, 3, 5], b[0, 62, 64], b[0, 0, 10] = float("inf"), float("nan"), 0.0
    a[0, 4, 0] = float("-inf")
    c = matmul(kernel(spec, SMALL_BLOCKS[form]), a, b, 2)
    expected = a.double() @ b.double()
    assert torch.equal(c.isnan(), expected.isnan()) and torch.equal(c.isinf(), expected.isinf())
    assert torch.equal(c[c.isinf()].double(), expected[c.isinf()])


NESTED = """
extern "C" void GOMP_parallel(void (*)(void*), void*, unsigned, unsigned);
extern "C" int omp_get_thread_num();
struct Call { long (*kernel)(void* const*, const long*, long); void* const* ptrs; const long* sizes; };
static void outer(void* data) {
  Call* c = (Call*)data;
  if (omp_get_thread_num() == 0) c->kernel(c->ptrs, c->sizes, 4);
}
extern "C" void nested(long (*kernel)(void* const*, const long*, long), void* const* ptrs, const long* sizes) {
  Call c{kernel, ptrs, sizes};
  GOMP_parallel(outer, &c, 2, 0);
}
"""


@pytest.mark.parametrize("form", FORMS)
def test_fewer_threads_may_arrive_than_were_asked_for(form: str) -> None:
    """Inside a parallel region OpenMP gives one thread to the four asked for."""
    spec = GemmSpec(b_layout=FORM_LAYOUTS[form][0])
    function, nested = kernel(spec, SMALL_BLOCKS[form]), compiled(NESTED, "nested")
    a, b = operands(spec, 1, 65, 200, 200)
    c = torch.full((1, 65, 200), float("nan"))
    ptrs = (ctypes.c_void_p * 3)(a.data_ptr(), b.data_ptr(), c.data_ptr())
    sizes = (ctypes.c_long * 13)(1, 65, 200, 200, *a.stride(), *b.stride(), *c.stride())
    nested(ctypes.cast(function, ctypes.c_void_p), ptrs, sizes)  # type: ignore[arg-type]
    assert_close(c, a, b, TOLERANCE["float32"])


def test_results_do_not_depend_on_the_number_of_threads() -> None:
    """K is divided over threads by splitk alone, so every other form gives the same bits with any number."""
    for form in (form for form in FORMS if form != "splitk"):
        spec = GemmSpec(b_layout=FORM_LAYOUTS[form][0])
        a, b = operands(spec, 1, 65, 200, 200)
        one, *others = (matmul(kernel(spec, SMALL_BLOCKS[form]), a, b, threads) for threads in (1, 2, 3, 4))
        assert all(torch.equal(one, other) for other in others), form


def test_what_does_not_go_together_is_refused() -> None:
    config = GemmConfig("dot", 4, 4)
    with pytest.raises(ValueError, match="form 'dot' needs a B of layout 'k'; this one is 'n'"):
        generate(GemmSpec(b_layout="n"), config, "f", None, 16)
    with pytest.raises(ValueError, match="pairs of k are for bfloat16"):
        generate(GemmSpec(), GemmConfig("tile_packed", 6, 4, pairs=True), "f", None, 16)
    with pytest.raises(ValueError, match="no epilogue was given"):
        generate(GemmSpec(has_epilogue=True), GemmConfig("tile_packed", 6, 4), "f", None, 16)
    with pytest.raises(ValueError, match="power of two"):
        generate(GemmSpec(b_layout="k"), replace(config, nv=3), "f", None, 16)
    with pytest.raises(ValueError, match="lanes is 12"):
        generate(GemmSpec(), GemmConfig("tile_packed", 6, 4), "f", None, 12)
    with pytest.raises(ValueError, match="float16"):
        generate(GemmSpec(dtype="float16"), GemmConfig("tile_packed", 6, 4), "f", None, 16)
    with pytest.raises(ValueError, match="complex64"):
        GemmSpec(dtype="complex64")
    with pytest.raises(ValueError, match="round twice"):
        GemmSpec("float64", out_dtype="bfloat16")
    with pytest.raises(ValueError, match="forms are tile_packed"):
        GemmConfig("magic", 6, 4)
    with pytest.raises(ValueError, match="no matmul configs for vectors of 2 float32"):
        configs(GemmSpec(), 2)


def test_a_config_survives_the_way_through_the_store() -> None:
    for config in configs(GemmSpec("bfloat16"), 16):
        assert GemmConfig.of(config.as_config()) == config
    assert len({str(config) for config in configs(GemmSpec(), 16)}) == len(configs(GemmSpec(), 16))


def test_tables_offer_a_few_configs_for_every_spec() -> None:
    for dtype, a, b in itertools.product(DTYPES, ("k", "m", "any"), ("n", "k", "any")):
        for vector_bytes in (16, 32, 64):
            spec = GemmSpec(dtype, a, b, out_dtype="int32" if dtype == "int8" else "float32")
            offered = configs(spec, vector_bytes // (8 if dtype == "float64" else 4))
            assert 2 <= len(offered) <= 8
            assert any(valid(spec, c, {"batch": 1, "M": m, "N": 64, "K": 64}) for c in offered for m in (1, 4096))
            assert all(b in FORM_LAYOUTS[c.form] for c in offered)


def sizes_of(m: int, n: int, k: int, batch: int = 1) -> dict[str, int]:
    return {"batch": batch, "M": m, "N": n, "K": k}


def test_forms_are_valid_where_they_make_sense() -> None:
    direct, splitk, stream = (SMALL_BLOCKS[form] for form in ("tile_direct", "splitk", "stream"))
    assert valid(GemmSpec(b_layout="n"), direct, sizes_of(512, 512, 512))
    assert not valid(GemmSpec(b_layout="k"), direct, sizes_of(512, 512, 512))
    assert valid(GemmSpec(), splitk, sizes_of(16, 64, 4096)) and not valid(GemmSpec(), splitk, sizes_of(16, 64, 64))
    assert valid(GemmSpec(), stream, sizes_of(4, 512, 512)) and not valid(GemmSpec(), stream, sizes_of(4096, 512, 512))


def test_the_prior_knows_what_is_plain() -> None:
    machine, spec = Machine(), GemmSpec()
    for config in configs(spec, 16):
        times = [cost(spec, config, sizes_of(m, 768, 768), 1, machine) for m in (1, 8, 64)]
        assert times == sorted(times) and times[0] > 0
        assert cost(spec, config, sizes_of(0, 64, 64), 1, machine) == 0
    packed, stream = GemmConfig("tile_packed", 6, 4, kc=1024), GemmConfig("stream", 8, 1, nc=512, unroll=8)
    few, many = sizes_of(1, 1024, 1024), sizes_of(1024, 1024, 1024)
    assert cost(spec, stream, few, 1, machine) < cost(spec, packed, few, 1, machine)
    assert cost(spec, packed, many, 1, machine) < cost(spec, stream, many, 1, machine)
    assert cost(spec, packed, many, 2, machine) < 0.7 * cost(spec, packed, many, 1, machine)
    tiny = sizes_of(8, 8, 8)
    assert cost(spec, packed, tiny, 1, machine) <= cost(spec, packed, tiny, 2, machine)


def test_a_machine_describes_itself() -> None:
    machine = Machine.detected()
    assert machine.vector_bytes in (16, 32, 64) and machine.gflops > 1 and 0 < machine.l2 <= machine.l3
    small, large = machine.bandwidth(1 << 16, 1), machine.bandwidth(1 << 34, 1)
    assert small >= large > 0
