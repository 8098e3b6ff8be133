@triton.jit
def pt_mul(a, b):
    return a * b


@triton.jit
def pt_accumulate(base, at, value, active, combine: tl.constexpr, BITS: tl.constexpr):
    words = (base + tl.where(active, at, 0)).to(tl.pointer_type(BITS), bitcast=True)
    old = tl.load(words, mask=active, other=0)
    waiting = active
    while tl.sum(tl.ravel(waiting).to(tl.int32), 0) > 0:
        new = combine(old.to(value.dtype, bitcast=True), value).to(BITS, bitcast=True)
        seen = tl.atomic_cas(words, old, tl.where(waiting, new, old), sem="relaxed")
        waiting = waiting & (seen != old)
        old = seen


# test.op.default
#   a0:float32:in a1:int64:in a2:float32:inout
#   loop kernel for p0 < n0, p1 < n1
#     t0 = load a0[n1*p0 + p1] : float32
#     t1 = load a1[p0] : int64
#     t2 = check_index t1 1000 : int64
#     a2[t2*n1 + p1] *= t0
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
    pt_accumulate(a2, (at0*n1 + p1) + tl.zeros([X], tl.int32), t0, tl.full([X], True, tl.int1) & ok_t2 & in_p1, pt_mul, tl.int32)
# grid (n0*(((n1 + 255)//256)), 1, 1), divisible ('a0', 'a1', 'a2', 'n0', 'n1')
