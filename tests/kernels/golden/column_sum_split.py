@triton.jit
def pt_add(a, b):
    return a + b


# test.op.default
#   a0:float32:in a1:float32:out
#   loop kernel for p0 < n0 over r0 < n1
#     t0 = load a0[n0*r0 + p0] : float32
#     t1 = reduce sum t0 : float32
#     a1[p0] = t1
@triton.jit
def polytile_kernel(a0, a1, n0, n1, scratch0, scratch1, R: tl.constexpr, X: tl.constexpr, SPLITS: tl.constexpr):
    x_at = tl.program_id(0)
    p0 = (x_at * X + tl.arange(0, X))[None, :]
    in_p0 = p0 < n0
    split = tl.program_id(1)
    chunk = tl.cdiv(n1, R * SPLITS) * R
    first = split * chunk
    last = tl.minimum(first + chunk, n1)
    row = p0
    t1_acc = tl.full([R, X], 0.0, tl.float32)
    for r0_at in range(first, last, R):
        r0 = (r0_at + tl.arange(0, R))[:, None]
        in_r0 = r0 < n1
        t0 = tl.load(a0 + (r0*n0 + p0), mask=in_r0 & in_p0, other=0)
        t1_acc = pt_add(t1_acc, tl.where(in_r0, t0, 0.0))
    t1_part = tl.sum(t1_acc, 0, keep_dims=True)
    tl.store(scratch0 + (split * (n0) + row), t1_part, mask=in_p0)
    tl.debug_barrier()
    arrived = tl.atomic_add(scratch1 + tl.program_id(0), 1, sem="acq_rel")
    if arrived == SPLITS - 1:
        tl.store(scratch1 + tl.program_id(0), 0)
        t1_all = tl.load(scratch0 + (tl.arange(0, SPLITS)[:, None] * (n0) + row), mask=in_p0, other=0.0, cache_modifier=".cg")
        t1 = tl.sum(t1_all, 0, keep_dims=True)
        tl.store(a1 + (p0), t1, mask=in_p0)
# grid (((n0 + 63)//64), 16, 1), divisible ('a0', 'a1', 'n0', 'n1', 'scratch0', 'scratch1')
