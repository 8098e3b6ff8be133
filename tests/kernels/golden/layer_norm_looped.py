@triton.jit
def pt_welford(mean_a, m2_a, n_a, mean_b, m2_b, n_b):
    n = n_a + n_b
    part = tl.where(n == 0, 0.0, n_b / n)
    delta = mean_b - mean_a
    return mean_a + delta * part, m2_a + m2_b + delta * delta * n_a * part, n


@triton.jit
def pt_welford_step(mean, m2, n, x):
    count = n + 1
    delta = x - mean
    centre = mean + delta / count
    return centre, m2 + delta * (x - centre), count


# test.op.default
#   a0:float32:in a1:float32:in a2:float32:in a3:float32:out a4:float32:out
#   loop kernel for p0 < n0 over r0 < n1
#     t0 = load a0[n1*p0 + r0] : float32
#     t1 = reduce welford t0 : float32
#     t2 = part 0 of t1 : float32
#     t3 = sub t0 t2 : float32
#     t4 = part 1 of t1 : float32
#     t5 = index n1 : int64
#     t6 = cast t5 : float32
#     t7 = div t4 t6 : float32
#     t8 = add t7 1e-05 : float32
#     t9 = rsqrt t8 : float32
#     t10 = mul t3 t9 : float32
#     t11 = load a1[r0] : float32
#     t12 = mul t10 t11 : float32
#     t13 = load a2[r0] : float32
#     t14 = add t12 t13 : float32
#     a3[n1*p0 + r0] = t14
#     a4[p0] = t9
@triton.jit
def polytile_kernel(a0, a1, a2, a3, a4, n0, n1, R: tl.constexpr):
    x_at = tl.program_id(0)
    p0 = x_at
    t1_acc = tl.full([R], 0.0, tl.float32)
    t1_acc1 = tl.full([R], 0.0, tl.float32)
    t1_acc2 = tl.full([R], 0.0, tl.float32)
    for r0_at in range(0, n1, R):
        r0 = (r0_at + tl.arange(0, R))
        in_r0 = r0 < n1
        t0 = tl.load(a0 + (p0*n1 + r0), mask=in_r0, other=0, eviction_policy="evict_last")
        t1_acc_new, t1_acc1_new, t1_acc2_new = pt_welford_step(t1_acc, t1_acc1, t1_acc2, t0)
        t1_acc = tl.where(in_r0, t1_acc_new, t1_acc)
        t1_acc1 = tl.where(in_r0, t1_acc1_new, t1_acc1)
        t1_acc2 = tl.where(in_r0, t1_acc2_new, t1_acc2)
    t1_0, t1_1, t1_n = tl.reduce((t1_acc, t1_acc1, t1_acc2), 0, pt_welford)
    t1_0 = tl.where(t1_n == 0, float("nan"), t1_0)
    t5 = tl.cast(n1, tl.int64)
    t6 = t5.to(tl.float32)
    t7 = t1_1 / t6
    t8 = t7 + 1e-05
    t9 = libdevice.rsqrt(t8)
    tl.store(a4 + (p0), t9)
    for r0_at in range(0, n1, R):
        r0 = (r0_at + tl.arange(0, R))
        in_r0 = r0 < n1
        t0 = tl.load(a0 + (p0*n1 + r0), mask=in_r0, other=0, eviction_policy="evict_first")
        t3 = t0 - t1_0
        t10 = t3 * t9
        t11 = tl.load(a1 + (r0), mask=in_r0, other=0, eviction_policy="evict_first")
        t12 = t10 * t11
        t13 = tl.load(a2 + (r0), mask=in_r0, other=0, eviction_policy="evict_first")
        t14 = t12 + t13
        tl.store(a3 + (p0*n1 + r0), t14, mask=in_r0)
# grid (n0, 1, 1), divisible ('a0', 'a1', 'a2', 'a3', 'a4', 'n0', 'n1')
