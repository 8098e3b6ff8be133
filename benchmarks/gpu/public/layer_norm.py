# mypy: ignore-errors
"""y = (x - mean) / deviation · w + b, and its gradients; those of w and b are added up by atomic operations."""

import torch
import triton
import triton.language as tl
from triton import autotune

CONFIGS = [triton.Config({}, num_warps=warps) for warps in (2, 4, 8)]


@autotune(configs=CONFIGS, key=["N"])
@triton.jit
def forward_kernel(x, w, b, y, means, rstds, N, eps, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    value = tl.load(x + row * N + at, at < N, 0.0).to(tl.float32)
    mean = tl.sum(value, 0) / N
    off = tl.where(at < N, value - mean, 0.0)
    rstd = 1 / tl.sqrt(tl.sum(off * off, 0) / N + eps)
    tl.store(means + row, mean)
    tl.store(rstds + row, rstd)
    result = off * rstd * tl.load(w + at, at < N, 0.0) + tl.load(b + at, at < N, 0.0)
    tl.store(y + row * N + at, result.to(y.dtype.element_ty), at < N)


@autotune(configs=CONFIGS, key=["N"], reset_to_zero=["grad_w", "grad_b"])
@triton.jit
def backward_kernel(grad_y, x, w, means, rstds, grad_x, grad_w, grad_b, N, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    inside = at < N
    value = tl.load(x + row * N + at, inside, 0.0).to(tl.float32)
    grad = tl.load(grad_y + row * N + at, inside, 0.0).to(tl.float32)
    rstd = tl.load(rstds + row)
    unit = tl.where(inside, (value - tl.load(means + row)) * rstd, 0.0)
    weighted = grad * tl.load(w + at, inside, 0.0)
    along, across = tl.sum(weighted * unit, 0) / N, tl.sum(weighted, 0) / N
    tl.store(grad_x + row * N + at, ((weighted - unit * along - across) * rstd).to(grad_x.dtype.element_ty), inside)
    tl.atomic_add(grad_w + at, grad * unit, inside)
    tl.atomic_add(grad_b + at, grad, inside)


def make(size, device, dtype):
    rows, n = ((6, 90), (512, 1000), (4096, 4096))[size]
    x, grad_y = torch.randn(2, rows, n, device=device, dtype=dtype)
    w, b = torch.randn(2, n, device=device)
    block = triton.next_power_of_2(n)

    def run():
        y, grad_x = torch.empty_like(x), torch.empty_like(x)
        means, rstds = torch.empty(2, rows, device=device)
        grad_w, grad_b = torch.zeros(2, n, device=device)
        forward_kernel[(rows,)](x, w, b, y, means, rstds, n, 1e-5, BLOCK=block)
        backward_kernel[(rows,)](grad_y, x, w, means, rstds, grad_x, grad_w, grad_b, n, BLOCK=block)
        return [y, grad_x, grad_w, grad_b]

    def right():
        leaves = [t.float().detach().requires_grad_() for t in (x, w, b)]
        with torch.enable_grad():
            y = torch.nn.functional.layer_norm(leaves[0], (n,), *leaves[1:], 1e-5)
            return [y.detach(), *torch.autograd.grad(y, leaves, grad_y.float())]

    return run, right
