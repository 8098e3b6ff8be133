@triton.jit
def pt_add(a, b):
    return a + b


# test.op.default
#   a0:float32:in a1:float32:out
#   loop kernel for p0 < n0 over r0 < 3*n1 + 1
#     t0 = load a0[4096*p0 + (n1 + 5)*((r0//n1)) + (Mod(r0, n1))] : float32
#     t1 = reduce sum t0 : float32
#     a1[p0] = t1
@triton.jit
def polytile_kernel(a0, a1, n0, n1, R: tl.constexpr, X: tl.constexpr):
    x_at = tl.program_id(0)
    p0 = (x_at * X + tl.arange(0, X))[None, :]
    in_p0 = p0 < n0
    t1_acc = tl.full([R, X], 0.0, tl.float32)
    r0 = (0 + tl.arange(0, R))[:, None]
    r0_part0 = (r0) // (n1)
    r0_part0_rest = (r0) - r0_part0 * (n1)
    r0_part0_step = ((1) * R) // (n1)
    r0_part0_more = ((1) * R) % (n1)
    for r0_at in range(0, 3*n1 + 1, R):
        r0 = (r0_at + tl.arange(0, R))[:, None]
        in_r0 = r0 < 3*n1 + 1
        t0 = tl.load(a0 + (4096*p0 + r0_part0*(n1 + 5) + r0_part0_rest), mask=in_r0 & in_p0, other=0)
        t1_acc = pt_add(t1_acc, tl.where(in_r0, t0, 0.0))
        r0_part0_rest += r0_part0_more
        r0_part0_over = r0_part0_rest >= n1
        r0_part0_rest = tl.where(r0_part0_over, r0_part0_rest - (n1), r0_part0_rest)
        r0_part0 += r0_part0_step + r0_part0_over.to(tl.int32)
    t1 = tl.sum(t1_acc, 0, keep_dims=True)
    tl.store(a1 + (p0), t1, mask=in_p0)
# grid (((n0 + 3)//4), 1, 1), divisible ()
