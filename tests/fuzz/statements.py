"""The statements that random programs are made of.

A template names its operands by what they have to be: `{a}`, `{b}` any tensor, `{f}`, `{g}` one of floats, `{i}` one of
int64, `{m}` one of bools, `{c}` one of complex numbers; and by `{d}`, `{e}` a dimension of the first operand, `{s}` a
number, `{t}` a dtype, `{n}` a size of the first operand. What it does to rounding decides where it may stand:

moves    copies values; what they are does not change
sums     exact where all operands hold small integers
rounds   rounds
decides  jumps at some value, so no operand may have been rounded; the result holds small integers
"""

from __future__ import annotations

from typing import NamedTuple


class Template(NamedTuple):
    text: str
    kind: str
    writes: bool = False
    """Whether it is a statement that writes into its first operand, and no expression."""


def _all(kind: str, texts: str, writes: bool = False) -> list[Template]:
    return [Template(text.strip(), kind, writes) for text in texts.split(";")]


VIEWS = _all("moves", """
    {a}.t(); {a}.transpose({d}, {e}); {a}.swapaxes(0, -1); {a}.movedim(0, -1); {a}[1:]; {a}[:-1]; {a}[..., 1::2];
    {a}[..., -2:]; {a}[:, ::3]; {a}[-1]; {a}[..., 0]; {a}[None]; {a}.narrow({d}, 1, {a}.shape[{d}] - 1);
    {a}.narrow({d}, {a}.shape[{d}] // 2, {a}.shape[{d}] - {a}.shape[{d}] // 2); {a}.unfold({d}, 2, 1);
    {a}.unfold({d}, 2, 2); {a}.select({d}, -1); {a}.diagonal(); {a}.diagonal(1, {d}, {e}); {a}.chunk(2, {d})[-1];
    {a}.split(2, {d})[0]; {a}.tensor_split(2, {d})[1]; {a}.unbind({d})[1]; {a}.unsqueeze({d}); {a}.squeeze({d});
    {a}.view(-1); {a}.reshape(-1); {a}.view({a}.shape[0], -1); {a}.view(-1, {a}.shape[-1]); {a}.view_as({b});
    {a}.flatten(0, 1); {a}.unflatten(-1, (1, -1)); {a}.unflatten(0, (-1, 1)); {a}.expand(3, *{a}.shape);
    {a}.expand_as({b}); {a}.as_strided(({a}.shape[0], 2), (1, 1));
    {a}.as_strided(({a}.shape[0],), ({a}.shape[-1],), 1); {a}.detach(); {a}.mT; {a}.to({a}.dtype); {a}.contiguous();
    torch.view_as_real({c}); {c}.imag
""")  # fmt: skip

MOVES = _all("moves", """
    {a}.clone(); {a}.transpose({d}, {e}).contiguous(); torch.cat([{a}, {b}], {d}); torch.cat([{a}, {a}], {d});
    torch.stack([{a}, {b}], {d}); torch.stack([{a}, {a}.flip({d})], -1); {a}.flip({d}); {a}.roll(1, {d});
    F.pad({a}, (1, 2)); F.pad({a}, (-1, 0), value=2); F.pad({f}, (1, 1), mode="reflect");
    {a}.repeat(2, *([1] * ({a}.dim() - 1))); {a}.repeat_interleave(2, {d}); torch.where({m}, {a}, {b});
    torch.where({m}, {a}, {s}); {a}.masked_fill({m}, {s});
    {a}.index_select({d}, torch.arange({a}.shape[{d}], device={a}.device).flip(0));
    {a}[torch.arange({a}.shape[0]) // 2]; {a}[:, torch.arange({a}.shape[1] - 1)]; {a}[{i}.abs() % {a}.shape[0]];
    {a}.gather({d}, torch.zeros_like({a}, dtype=torch.int64));
    {a}.take_along_dim({a}.argsort(dim={d}, stable=True), {d}); {a}.tril(); {a}.triu(1); {a}.relu(); {a}.abs();
    {a}.clamp(-1, 1); {f}.clamp(min={g}); torch.maximum({a}, {b}); torch.minimum({a}, {b}); torch.fmax({f}, {g});
    {a}.amax({d}); {a}.amin({d}, keepdim=True); {a}.amax(); {a}.max({d}).values; {a}.min({d}, keepdim=True)[0];
    {a}.cummax({d}).values; {f}.nan_to_num(1.0, 2.0, -2.0); {a}.to({t}); {a}.new_full(({n}, 3), 2);
    torch.zeros_like({a}); torch.full_like({a}, {s}); torch.arange({n}) * 2; torch.eye({n}, 3);
    torch.tensor([1, 2, 3]); torch.tensor(2.0); {a}.bool(); {i}.float(); {f}.to(torch.complex64);
    torch.index_copy({a}, {d}, torch.arange({a}.shape[{d}]).roll(1), {a}.flip({d})); F.max_pool1d({f}, 2);
    F.one_hot({i}.abs() % 4, 4); torch.nn.functional.interpolate({f}, scale_factor=2); {a}.squeeze({d}).clone();
    {a}.masked_scatter({m}, {a}.flip({d})); {a}.kthvalue(1, {d}).values; {a}.rot90(1, (0, 1));
    torch.select_scatter({a}, {a}.select({d}, 0) * 2, {d}, -1);
    torch.slice_scatter({a}, {a}.narrow({d}, 1, 1), {d}, 0, 1); torch.diagonal_scatter({a}, {a}.diagonal() * 2)
""")  # fmt: skip

SUMS = _all("sums", """
    {a} + {b}; {a} - {b}; {a} * {b}; {a} + {s}; {s} - {a}; {a} * {s}; torch.add({a}, {b}, alpha=2); -{a}; {a}.square();
    {a}.sum({d}); {a}.sum(); {a}.sum({d}, keepdim=True); {a}.sum((0, -1)); {a}.sum({d}, dtype={t}); {a}.prod({d});
    {a}.cumsum({d}); {a}.diff(dim={d}); {a} @ {b}; {a} @ {a}.mT; {a}.mT @ {a}; torch.mm({f}, {f}.t());
    torch.mm({f}.t(), {f}[:, :2]); torch.mm({f}.t(), {g}.t()); torch.bmm({f}, {f}.mT); torch.addmm({g}, {f}, {f}.t());
    torch.addmm({f}[0], {f}, {f}.T @ {f}, beta=2); torch.baddbmm({g}, {f}, {f}.mT); F.linear({f}, {g});
    F.linear({f}, {f}, {g}); torch.einsum("ij,kj->ik", {f}, {g}); torch.einsum("...i,...i->...", {f}, {g});
    torch.outer({f}.flatten()[:7], {g}.flatten()[:9]); {a}.index_add({d}, torch.arange({a}.shape[{d}]) // 2, {b});
    {a}.scatter_add({d}, torch.zeros_like({a}, dtype=torch.int64), {b});
    {a}.scatter_reduce({d}, torch.ones_like({a}, dtype=torch.int64), {b}, "sum");
    {a}.index_put((torch.arange({a}.shape[0]) // 2,), {b}, accumulate=True); {f}.addcmul({g}, {g}, value=2);
    {a}.tril().sum({d}) + {a}.triu().sum({d}); F.conv1d({f}, torch.ones(2, {f}.shape[-2], 2, dtype={f}.dtype));
    F.avg_pool1d({f}, 2) * 2; {a}.trace(); {c} * {c}.conj(); {a}.bitwise_xor({b}); {a}.unfold({d}, 2, 1).sum(-1);
    {a}.cumsum({d}).flip({d}); {a}.cumprod({d})
""")  # fmt: skip

ROUNDS = _all("rounds", """
    {f}.sin(); {f}.tanh(); {f}.sigmoid(); (-{f}.abs()).exp(); ({f}.abs() + 1).log(); ({f}.abs() + 1).rsqrt();
    {f} / ({g}.abs() + 1); {a} / 3; {a} / {s}; 1 / {f}; {f}.erf(); F.gelu({f}); F.silu({f}); {f}.mean({d}); {f}.mean();
    {f}.var({d}, correction=0); {f}.std({d}, keepdim=True); {f}.softmax({d}); {f}.log_softmax({d}); {f}.logsumexp({d});
    {f}.norm(dim={d}); F.normalize({f}, dim={d}); F.layer_norm({f}, {f}.shape[-1:]);
    F.layer_norm({f}, {f}.shape[-1:], {f}.flatten()[:{f}.shape[-1]]); F.batch_norm({f}, None, None, training=True);
    F.group_norm({f}, 1); F.scaled_dot_product_attention({f}, {f}, {g}); F.mse_loss({f}, {g});
    torch.lerp({f}, {g}, 0.3); torch.hypot({f}, {g}); torch.atan2({f}, {g}); {f}.logcumsumexp({d}); {f}.pow(2.5);
    torch.cdist({f}, {g}); F.cosine_similarity({f}, {g}, dim={d}); F.dropout({f}, 0.4, True);
    F.dropout({f} + 1, 0.5) * {f}; {f} * torch.rand_like({f}, dtype=torch.float); {f} + torch.randn({f}.shape);
    {f} + torch.rand(({n}, 1)); {f}[torch.randperm({f}.shape[0])]; {f} * torch.bernoulli(torch.full({f}.shape, 0.4));
    {f} + torch.randint(0, 5, ({n}, 1)); {c}.abs(); {a}.float().sqrt().nan_to_num();
    F.conv1d({f}, {g}.flatten()[:{f}.shape[-2] * 2].view(1, {f}.shape[-2], 2)); F.adaptive_avg_pool1d({f}, 2);
    {f}.softmax(-1) @ {g}; F.cross_entropy({f}, torch.arange({f}.shape[0]) % {f}.shape[1]);
    F.embedding(torch.arange(3) % {f}.shape[0], {f});
    ({f} - {f}.mean({d}, keepdim=True)) / ({f}.std({d}, keepdim=True) + 1)
""")  # fmt: skip

DECIDES = _all("decides", """
    {a} > {b}; {a} == {b}; {a} < {s}; {a} != 0; {a}.argmax({d}); {a}.argmin({d}, keepdim=True); {a}.argmax();
    {a}.max({d}).indices; {a}.sort(dim={d}, stable=True).indices; {a}.sort({d}, descending=True).values;
    {a}.sort({d}).values; {a}.argsort(dim={d}, stable=True); {a}.topk(1, {d}).values; {a}.median({d}).values;
    {a}.cummax({d}).indices; {a}.cummin({d})[1]; {f}.isnan(); {f}.isfinite(); {f}.floor(); {f}.round();
    {f}.trunc().nan_to_num(0, 1, -1).to(torch.int64); {f}.sign(); {a}.sgn(); {a}.any({d}); {a}.all({d}, keepdim=True);
    {a}.any(); {a}.logical_not(); {m} & {m}.flip({d}); {m} | ({a} > 0); ~{m}; {a}.count_nonzero({d});
    torch.bucketize({a}, torch.tensor([-1, 0, 2])); torch.isin({a}, torch.tensor([0, 1])); {i} // 2; {i} % 3;
    {i} // -3; torch.remainder({f}, 2); torch.fmod({i}, 3); {i} << 1; {i} >> 1; {i} & 3; {f}.heaviside({g});
    {f}.clamp(-1, 2).trunc(); {a}.eq({a}.amax({d}, keepdim=True)); ({a} > 0).cumsum({d}); ({a} > 0).to({t});
    ({a} > 0).sum({d}); torch.searchsorted({a}.sort(-1).values, {a}.contiguous()); {a}.nonzero(); {a}[{a} > 0]
""")  # fmt: skip

WRITES = [
    *_all("moves", """
    {a}.copy_({b}); {a}.copy_({a}.flip({d})); {a}[0] = {b}; {a}[0] = {s}; {a}[..., 0] = {a}[..., -1];
    {a}[1:] = {a}[:-1]; {a}.zero_(); {a}.fill_({s}); {a}.diagonal().fill_({s}); {a}.diagonal().copy_({a}[0]);
    {a}.masked_fill_({m}, {s}); {a}[{m}] = {s}; {a}.relu_(); {a}.clamp_(-1, 1);
    {a}.index_copy_({d}, torch.arange({a}.shape[{d}]).flip(0), {b}); {a}.index_fill_({d}, torch.arange(1), {s});
    {a}.scatter_({d}, torch.zeros_like({a}, dtype=torch.int64), {s});
    {a}.index_put_((torch.arange({a}.shape[0]).flip(0),), {b}); {a}[torch.arange({a}.shape[0] - 1)] = {s};
    {a}.select({d}, 0).copy_({a}.select({d}, -1)); {a}.chunk(2, {d})[0].zero_(); {a}.unbind({d})[0].fill_({s});
    {a}.abs_(); {a}.tril_(); {a}.t_(); {a}.transpose_({d}, {e}); {a}.unsqueeze_({d}); {a}.squeeze_({d})
    """, True),
    *_all("sums", """
    {a}.add_({b}); {a}.add_({s}); {a}.sub_({b}, alpha=2); {a}.mul_({s}); {a}.mul_({b}); {a}.neg_(); {a} += {b};
    {a} *= {s}; {a}[1:].add_({a}[:-1].clone()); {a}[1:] += 1; {a}[..., ::2].mul_(2); {a}.t()[0].add_({s});
    {a}.transpose({d}, {e}).add_({b}); {a}.view(-1)[1:].add_(1);
    {a}.index_add_({d}, torch.arange({a}.shape[{d}]) // 2, {b});
    {a}.index_put_((torch.arange({a}.shape[0]) // 2,), {b}, accumulate=True);
    {a}.scatter_add_({d}, torch.zeros_like({a}, dtype=torch.int64), {b}); {a}.cumsum_({d}); {a}.square_();
    {a}.narrow({d}, 0, 1).add_(1); {a}.sub_({a}.sum({d}, keepdim=True)); {f}.addmm_({f}, {f}.T @ {f});
    {f}.addcmul_({g}, {g}); {a}.as_strided((2,), (1,)).add_(1)
    """, True),
    *_all("rounds", """
    {f}.sin_(); {f}.div_(3); {f}.sigmoid_(); {f}.tanh_(); {f}[0].copy_({f}.softmax({d})[0]); {f}.lerp_({g}, 0.25);
    {f}.sub_({f}.mean({d}, keepdim=True)); {f}[..., 0] = {g}.mean()
    """, True),
]  # fmt: skip

TABLES = ((VIEWS, 9), (MOVES, 8), (SUMS, 7), (ROUNDS, 5), (DECIDES, 4), (WRITES, 8))
"""Tables with the weights by which they are drawn."""
