@triton.jit
def pt_online_step(high, total, x):
    small = tl.exp(-tl.abs(x - high))
    return tl.maximum(high, x, propagate_nan=tl.PropagateNan.ALL), tl.where(x > high, total * small + 1, total + small)


@triton.jit
def pt_online(max_a, sum_a, max_b, sum_b):
    high = tl.maximum(max_a, max_b, propagate_nan=tl.PropagateNan.ALL)
    return high, sum_a * tl.exp(max_a - high) + sum_b * tl.exp(max_b - high)


# test.op.default
#   a0:float32:in a1:float32:out
#   loop kernel for p0 < n0 over r0 < n1
#     t0 = load a0[n1*p0 + r0] : float32
#     t1 = reduce online_softmax t0 : float32
#     t2 = part 0 of t1 : float32
#     t3 = sub t0 t2 : float32
#     t4 = exp t3 : float32
#     t5 = part 1 of t1 : float32
#     t6 = div t4 t5 : float32
#     a1[n1*p0 + r0] = t6
@triton.jit
def polytile_kernel(a0, a1, n0, n1, scratch0, scratch1, R: tl.constexpr, SPLITS: tl.constexpr):
    x_at = tl.program_id(0)
    p0 = x_at
    split = tl.program_id(1)
    chunk = tl.cdiv(n1, R * SPLITS) * R
    first = split * chunk
    last = tl.minimum(first + chunk, n1)
    row = p0
    t1_acc = tl.full([R], -3.4028234663852886e+38, tl.float32)
    t1_acc1 = tl.full([R], 0.0, tl.float32)
    for r0_at in range(first, last, R):
        r0 = (r0_at + tl.arange(0, R))
        in_r0 = r0 < n1
        t0 = tl.load(a0 + (p0*n1 + r0), mask=in_r0, other=0, eviction_policy="evict_last")
        t1_acc, t1_acc1 = pt_online_step(t1_acc, t1_acc1, tl.where(in_r0, t0, -3.4028234663852886e+38))
    t1_part, t1_part1 = tl.reduce((t1_acc, t1_acc1), 0, pt_online)
    tl.store(scratch0 + (row * SPLITS + split), t1_part)
    tl.store(scratch1 + (row * SPLITS + split), t1_part1)
# grid (n0, 8, 1), divisible ('a0', 'a1', 'n0', 'n1', 'scratch0', 'scratch1')

@triton.jit
def pt_online(max_a, sum_a, max_b, sum_b):
    high = tl.maximum(max_a, max_b, propagate_nan=tl.PropagateNan.ALL)
    return high, sum_a * tl.exp(max_a - high) + sum_b * tl.exp(max_b - high)


# test.op.default
#   a0:float32:in a1:float32:out
#   loop kernel for p0 < n0 over r0 < n1
#     t0 = load a0[n1*p0 + r0] : float32
#     t1 = reduce online_softmax t0 : float32
#     t2 = part 0 of t1 : float32
#     t3 = sub t0 t2 : float32
#     t4 = exp t3 : float32
#     t5 = part 1 of t1 : float32
#     t6 = div t4 t5 : float32
#     a1[n1*p0 + r0] = t6
@triton.jit
def polytile_kernel(a0, a1, n0, n1, scratch0, scratch1, R: tl.constexpr, SPLITS: tl.constexpr):
    x_at = tl.program_id(0)
    p0 = x_at
    split = tl.program_id(1)
    chunk = tl.cdiv(n1, R * SPLITS) * R
    first = split * chunk
    last = tl.minimum(first + chunk, n1)
    row = p0
    t1_all = tl.load(scratch0 + (row * SPLITS + tl.arange(0, SPLITS)), cache_modifier=".cg")
    t1_all1 = tl.load(scratch1 + (row * SPLITS + tl.arange(0, SPLITS)), cache_modifier=".cg")
    t1_0, t1_1 = tl.reduce((t1_all, t1_all1), 0, pt_online)
    t1_1 = tl.where(t1_0 == float("inf"), float("nan"), t1_1)
    for r0_at in range(first, last, R):
        r0 = (r0_at + tl.arange(0, R))
        in_r0 = r0 < n1
        t0 = tl.load(a0 + (p0*n1 + r0), mask=in_r0, other=0, eviction_policy="evict_first")
        t3 = t0 - t1_0
        t4 = libdevice.exp(t3)
        t6 = t4 / t1_1
        tl.store(a1 + (p0*n1 + r0), t6, mask=in_r0)
# grid (n0, 8, 1), divisible ('a0', 'a1', 'n0', 'n1', 'scratch0', 'scratch1')
