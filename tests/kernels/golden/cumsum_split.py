@triton.jit
def pt_add(a, b):
    return a + b


# test.op.default
#   a0:float32:in a1:float32:out
#   loop kernel for p0 < n0 over r0 < n1
#     t0 = load a0[n1*p0 + r0] : float32
#     t1 = scan sum t0 : float32
#     a1[n1*p0 + r0] = t1
@triton.jit
def polytile_kernel(a0, a1, n0, n1, scratch0, R: tl.constexpr, SPLITS: tl.constexpr):
    x_at = tl.program_id(0)
    p0 = x_at
    split = tl.program_id(1)
    chunk = tl.cdiv(n1, R * SPLITS) * R
    first = split * chunk
    last = tl.minimum(first + chunk, n1)
    row = p0
    t1_acc = tl.full([R], 0.0, tl.float32)
    for r0_at in range(first, last, R):
        r0 = (r0_at + tl.arange(0, R))
        in_r0 = r0 < n1
        t0 = tl.load(a0 + (p0*n1 + r0), mask=in_r0, other=0)
        t1_acc = pt_add(t1_acc, tl.where(in_r0, t0, 0.0))
    t1_part = tl.sum(t1_acc, 0)
    tl.store(scratch0 + (row * SPLITS + split), t1_part)
# grid (n0, 8, 1), divisible ('a0', 'a1', 'n0', 'n1', 'scratch0')

@triton.jit
def pt_add(a, b):
    return a + b


# test.op.default
#   a0:float32:in a1:float32:out
#   loop kernel for p0 < n0 over r0 < n1
#     t0 = load a0[n1*p0 + r0] : float32
#     t1 = scan sum t0 : float32
#     a1[n1*p0 + r0] = t1
@triton.jit
def polytile_kernel(a0, a1, n0, n1, scratch0, R: tl.constexpr, SPLITS: tl.constexpr):
    x_at = tl.program_id(0)
    p0 = x_at
    split = tl.program_id(1)
    chunk = tl.cdiv(n1, R * SPLITS) * R
    first = split * chunk
    last = tl.minimum(first + chunk, n1)
    row = p0
    t1_all = tl.load(scratch0 + (row * SPLITS + tl.arange(0, SPLITS)), mask=(tl.arange(0, SPLITS) < split), other=0.0, cache_modifier=".cg")
    carry_t1_0 = tl.sum(t1_all, 0)
    for r0_at in range(first, last, R):
        r0 = (r0_at + tl.arange(0, R))
        in_r0 = r0 < n1
        t0 = tl.load(a0 + (p0*n1 + r0), mask=in_r0, other=0)
        t1_scan0 = tl.associative_scan(tl.where(in_r0, t0, 0.0), 0, pt_add)
        t1_scan0 = pt_add(carry_t1_0, t1_scan0)
        t1 = t1_scan0
        tl.store(a1 + (p0*n1 + r0), t1, mask=in_r0)
        carry_t1_0 = tl.sum(tl.where(tl.arange(0, R) == R - 1, t1_scan0, 0.0), 0).to(tl.float32)
# grid (n0, 8, 1), divisible ('a0', 'a1', 'n0', 'n1', 'scratch0')
