@triton.jit
def pt_max(a, b):
    return tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)


# test.op.default
#   a0:float32:in a1:float32:out
#   loop kernel for p0 < n0 over r0 < n1
#     t0 = load a0[n1*p0 + r0] : float32
#     t1 = reduce max t0 : float32
#     t2 = sub t0 t1 : float32
#     t3 = exp t2 : float32
#     t4 = reduce sum t3 : float32
#     t5 = div t3 t4 : float32
#     a1[n1*p0 + r0] = t5
@triton.jit
def polytile_kernel(a0, a1, n0, n1, R: tl.constexpr):
    x_at = tl.program_id(0)
    p0 = x_at
    r0 = tl.arange(0, R)
    in_r0 = r0 < n1
    t0 = tl.load(a0 + (p0*n1 + r0), mask=in_r0, other=0)
    t1 = tl.reduce(tl.where(in_r0, t0, float("-inf")), 0, pt_max)
    t2 = t0 - t1
    t3 = libdevice.exp(t2)
    t4 = tl.sum(tl.where(in_r0, t3, 0.0), 0)
    t5 = t3 / t4
    tl.store(a1 + (p0*n1 + r0), t5, mask=in_r0)
# grid (n0, 1, 1), divisible ('a0', 'a1', 'n0', 'n1')
