@triton.jit
def polytile_kernel(a0, a1, a2, n0, n1, error, X: tl.constexpr):
    at = tl.program_id(0)
    x_at = at % (((n1 + 255) // 256))
    at = at // (((n1 + 255) // 256))
    y_at = at
    p0 = y_at
    p1 = (x_at * X + tl.arange(0, X))
    in_p1 = p1 < n1
    t0 = tl.load(a0 + (p0*n1 + p1), mask=in_p1, other=0)
    t1 = tl.load(a1 + (p0))
    ok_t2 = (t1 >= -(tl.full([], 1000, tl.int64))) & (t1 < tl.full([], 1000, tl.int64))
    tl.store(error, 1, mask=(ok_t2 == 0))
    t2 = tl.where(ok_t2, tl.where(t1 < 0, t1 + tl.full([], 1000, tl.int64), t1), 0)
    at0 = t2.to(tl.int32)
    tl.atomic_add(a2 + (at0*n1 + p1), t0, mask=ok_t2 & in_p1, sem="relaxed")
# grid (n0*(((n1 + 255)//256)), 1, 1), divisible ('a0', 'a1', 'a2', 'n0', 'n1')
