@triton.jit
def polytile_kernel(a0, a1, a2, n0, n1, Y: tl.constexpr, X: tl.constexpr):
    at = tl.program_id(0)
    x_at = at % (((n1 + 63) // 64))
    at = at // (((n1 + 63) // 64))
    y_at = at
    p0 = (y_at * Y + tl.arange(0, Y))[:, None]
    in_p0 = p0 < n0
    p1 = (x_at * X + tl.arange(0, X))[None, :]
    in_p1 = p1 < n1
    t0 = tl.load(a0 + (p1*n0 + p0), mask=in_p0 & in_p1, other=0)
    t1 = tl.load(a1 + (p0*n1 + p1), mask=in_p0 & in_p1, other=0)
    t2 = t0 + t1
    tl.store(a2 + (p0*n1 + p1), t2, mask=in_p0 & in_p1)
# grid ((((n0 + 63)//64))*(((n1 + 63)//64)), 1, 1), divisible ('a0', 'a1', 'a2', 'n0', 'n1')
