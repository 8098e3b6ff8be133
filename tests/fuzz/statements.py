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
    {a} + {b}; {a} - {b}; {a} * {b}; {a} + {s}; {s} - {a}; {a} * {s}; torch.add({a}, {b}, alpha=2); -{a};
    {a}.square();
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
    {f} / ({g}.abs() + 1); {a} / 3; {a} / {s}; 1 / {f}; {f}.erf(); F.gelu({f}); F.silu({f}); {f}.mean({d});
    {f}.mean();
    {f}.var({d}, correction=0); {f}.std({d}, keepdim=True); {f}.softmax({d}); {f}.log_softmax({d});
    {f}.logsumexp({d});
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

HEADS = "{f}.reshape(1, -1, *{f}.shape[-2:])"
"""Queries, keys or values: a head for each matrix."""
PLANES = "{f}.reshape(1, -1, *{f}.shape[-2:])"
ROWS, COLUMNS = "torch.arange({f}.shape[-2])[:, None]", "torch.arange({f}.shape[-2])"

ATTENTION = _all("rounds", """
    F.scaled_dot_product_attention(Q, Q, Q, is_causal=True); F.scaled_dot_product_attention(Q, Q, Q * 2, scale=0.3);
    F.scaled_dot_product_attention(Q, Q, Q, attn_mask=ROWS >= COLUMNS);
    F.scaled_dot_product_attention(Q, Q, Q, attn_mask=ROWS > COLUMNS);
    F.scaled_dot_product_attention(Q, Q, Q, attn_mask=((ROWS - COLUMNS) * 0.1).to({f}.dtype));
    F.scaled_dot_product_attention(Q, Q, Q, attn_mask=(ROWS - COLUMNS).abs() < 2);
    F.scaled_dot_product_attention(Q, Q[:, :1].expand(Q.shape), Q.repeat_interleave(1, 1));
    F.scaled_dot_product_attention(Q.repeat_interleave(2, 1), Q.repeat_interleave(2, 1), Q.repeat(1, 2, 1, 1));
    F.scaled_dot_product_attention(Q.repeat(1, 2, 1, 1), Q, Q, enable_gqa=True);
    F.scaled_dot_product_attention(Q[..., :1, :], Q, Q);
    F.scaled_dot_product_attention(Q, Q[..., :0, :], Q[..., :0, :]);
    F.scaled_dot_product_attention(Q[..., :0, :], Q, Q);
    F.scaled_dot_product_attention(Q, Q, Q, dropout_p=0.4);
    F.scaled_dot_product_attention({f}, {f}, {f}, is_causal=True);
    F.scaled_dot_product_attention(Q.transpose(1, 2), Q.transpose(1, 2), Q.transpose(1, 2));
    (Q @ Q.mT).softmax(-1) @ Q;
    (Q @ Q.mT * 0.2).softmax(-1) @ Q; (5 * (Q @ Q.mT / 5).tanh()).softmax(-1) @ Q;
    (Q @ Q.mT + (ROWS - COLUMNS) * 0.1).softmax(-1) @ Q;
    (Q @ Q.mT).masked_fill(ROWS < COLUMNS, -float("inf")).softmax(-1) @ Q;
    (Q @ Q.mT).masked_fill((ROWS - COLUMNS).abs() > 1, -float("inf")).softmax(-1) @ Q;
    (Q @ Q.mT).masked_fill(ROWS > COLUMNS - 2, -1e4).softmax(-1) @ Q; F.dropout((Q @ Q.mT).softmax(-1), 0.3) @ Q;
    torch.einsum("bhqk,bhkd->bhqd", torch.einsum("bhqd,bhkd->bhqk", Q, Q).softmax(-1), Q);
    ({f} @ {f}.mT).float().softmax(-1).to({f}.dtype) @ {f};
    torch.baddbmm({f} @ {f}.mT, {f}, {f}.mT, alpha=0.5).softmax(-1) @ {f}
""".replace("Q", HEADS).replace("ROWS", ROWS).replace("COLUMNS", COLUMNS))  # fmt: skip

WINDOWS = [
    *_all("sums", """
    F.conv2d(P, torch.ones(2, P.shape[1], 2, 3).to({f}.dtype));
    F.conv2d(P, torch.ones(1, P.shape[1], 3, 3).to({f}.dtype), padding=1);
    F.conv2d(P, torch.ones(2, P.shape[1], 2, 2).to({f}.dtype), {f}.flatten()[:2], stride=2);
    F.conv2d(P, torch.ones(2, P.shape[1], 2, 2).to({f}.dtype), dilation=2, padding="same");
    F.conv2d(P.expand(-1, 4, -1, -1), torch.ones(6, 2, 1, 1).to({f}.dtype), groups=2);
    F.conv2d(P.repeat(1, 2, 1, 1), torch.ones(P.shape[1] * 2, 1, 2, 2).to({f}.dtype), groups=P.shape[1] * 2);
    F.conv2d(F.pad(P, (1, 1, 1, 1), mode="circular"), torch.ones(2, P.shape[1], 3, 3).to({f}.dtype));
    F.conv1d(F.pad({f}, (1, 1), mode="reflect"), torch.ones(2, {f}.shape[-2], 3).to({f}.dtype));
    F.conv1d({f}, torch.ones(2, {f}.shape[-2], 1).to({f}.dtype), {f}.flatten()[:2], stride=2, padding=1);
    F.conv1d({f}, torch.ones({f}.shape[-2], 1, 2).to({f}.dtype), groups={f}.shape[-2]);
    F.conv3d(P[None], torch.ones(2, 1, 1, 2, 2).to({f}.dtype), padding=1);
    F.conv_transpose1d({f}, torch.ones({f}.shape[-2], 2, 3).to({f}.dtype), stride=2, padding=1);
    F.conv_transpose2d(P, torch.ones(P.shape[1], 2, 2, 2).to({f}.dtype), stride=2, output_padding=1);
    F.conv_transpose2d(P, torch.ones(P.shape[1], 1, 3, 2).to({f}.dtype), dilation=2, groups=P.shape[1]);
    F.conv2d({f}.mT.reshape(1, 1, {f}.shape[-1], -1), {f}.flatten()[:4].view(1, 1, 2, 2));
    F.unfold(P, 2); F.fold(F.unfold(P, 2), P.shape[-2:], 2); F.unfold(P, (1, 2), stride=2, padding=1);
    F.avg_pool2d(P, 2) * 4; F.lp_pool2d(P, 1, 2); F.avg_pool1d({f}, 2, ceil_mode=True, count_include_pad=False) * 2
    """.replace("P", PLANES)),
    *_all("moves", """
    F.max_pool2d(P, 2); F.max_pool2d(P, 2, 1, 1); F.max_pool2d(P, 3, 2, ceil_mode=True, padding=1);
    F.adaptive_max_pool1d({f}, 2);
    F.adaptive_max_pool2d(P, (2, 3)); F.pad(P, (1, 1, 1, 1), mode="circular");
    F.pad(P, (1, 0, 2, 1), mode="replicate");
    F.pad({f}, (1, 1), mode="circular"); F.pad({f}, (2, 1), mode="replicate"); F.interpolate(P, scale_factor=2);
    F.interpolate(P, size=(3, 5)); F.interpolate(P, size=(7, {f}.shape[-1]), mode="nearest-exact");
    P.to(memory_format=torch.channels_last);
    F.pixel_unshuffle(F.pixel_shuffle(P.expand(-1, 4, -1, -1), 2), 2);
    F.max_pool2d(P.contiguous(memory_format=torch.channels_last), 2);
    F.channel_shuffle(P.repeat(1, 2, 1, 1), 2); P.permute(0, 2, 3, 1);
    P.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)
    """.replace("P", PLANES)),
    *_all("rounds", """
    F.interpolate(P, size=(4, 7), mode="bilinear");
    F.interpolate(P, scale_factor=2, mode="bilinear", align_corners=True);
    F.interpolate(P, scale_factor=2, mode="bicubic"); F.interpolate(P, size=(2, 2), mode="area");
    F.adaptive_avg_pool2d(P, 1);
    F.interpolate({f}, size=5, mode="linear"); F.adaptive_avg_pool2d(P, (3, 2));
    F.avg_pool2d(P, 3, 2, 1, count_include_pad=False);
    F.instance_norm(P); F.group_norm(P, 1); F.local_response_norm(P, 2);
    F.batch_norm(P, torch.zeros(P.shape[1]), torch.ones(P.shape[1]));
    F.layer_norm(P.permute(0, 2, 3, 1), P.shape[1:2]);
    F.conv2d(P.contiguous(memory_format=torch.channels_last), P[:, :, :2, :2]).relu();
    F.grid_sample(P, torch.zeros(1, 3, 4, 2).to({f}.dtype) + 0.3, align_corners=False);
    F.conv2d(P, P[..., :2, :1], P.flatten()[:1]).sigmoid()
    """.replace("P", PLANES)),
]  # fmt: skip

INTEGERS = _all("decides", """
    {a} % 3; {a} % -3; {a} // 2; {a} // -2; torch.div({a}, {s}, rounding_mode="trunc");
    torch.div({a}, 3, rounding_mode="floor");
    {i} % ({i} * 2 + 1); {i} // ({i} * 2 - 1); torch.fmod({i}, {i} * 2 + 1); torch.remainder({a}, -2);
    torch.fmod({a}, -3); {a} ^ 5; {a} | 1;
    {a} & -2; ~{a}; {a} << 2; {a} >> 1; {a}.to(torch.int8) * 100; ({a} * 57).to(torch.int16).to(torch.int8);
    {i}.to(torch.uint8) - 5;
    {i}.to(torch.int32) * 2000000011; {a}.pow(3); {i}.abs().to(torch.uint8).pow(5); {a}.to(torch.int8).sum({d});
    {a}.to(torch.int8).cumsum({d});
    ({a}.to(torch.int8) * 91).abs(); -{i}.to(torch.uint8); torch.gcd({i}, {i} + 6); torch.lcm({i}, {i} + 6);
    {m} + {m}; {m} * {a}; {m} + {a};
    {m}.sum({d}); {m}.prod({d}); {m} ^ {m}.flip({d}); {m} <= {m}.flip({d}); {m}.cumsum({d}); {m}.amax({d});
    {i}.to(torch.uint8) // 3; {i} / 2 > 1;
    {i}.to(torch.uint8) % 5; {i}.to(torch.uint8) > -1; {i}.to(torch.int8) > 200;
    {i}.to(torch.int8) + {i}.to(torch.uint8); {i}.to(torch.int8) + 300;
    torch.where({m}, {i}.to(torch.int8), 300); {i}.to(torch.int16).clamp(-40000, 3);
    {i}.to(torch.int8).fill_(3) * {i}; {i}.to(torch.int8) @ {i}.to(torch.int8).mT;
    ({i} << 62) * 4; ({i} * (2 ** 62)).sum({d}); {i}.to(torch.int32).prod({d}); {i}.bitwise_left_shift({i} & 3);
    {i}.sign() * {i}; {a}.to(torch.int8).unique()
""")  # fmt: skip

COMPLEX = [
    *_all("sums", """
    {c} * {c}; {c} + {a}; {c} * {f}; {c} - {s}; {c}.sum({d}); {c} @ {c}.mT; {c}.square();
    torch.complex({f}, {f}) * {c}; {c}.cumsum({d}); {c}.prod({d});
    {c}.mul({c}.conj()).real; {c}.conj().t(); torch.view_as_complex(torch.stack([{f}, {f}], -1)); {c} * 1j;
    {c}.vdot({c}) if {c}.dim() == 1 else {c} * 2;
    torch.einsum("...i,...i->...", {c}, {c}); {c}.addcmul({c}, {c}); {c}.cumprod({d});
    {c}.index_add({d}, torch.arange({c}.shape[{d}]) // 2, {c}); {c}.mH @ {c}
    """),
    *_all("moves", """
    {c}.real; {c}.conj(); {c}.flip({d}); {c}.roll(1, {d}); torch.cat([{c}, {c}], {d}); {c}.clone();
    {c}.t().contiguous(); {c}.repeat(2, 1); {c}.tril(); -{c};
    torch.where({m}, {c}, {c}.conj()); {c}.masked_fill({m}, {s}); F.pad({c}, (1, 1));
    {c}.gather({d}, torch.zeros_like({c}, dtype=torch.int64));
    {c}[torch.arange({c}.shape[0]) // 2]; torch.stack([{c}, {c}.conj()]); {c}.resolve_conj(); {c}.conj().imag;
    {c}.unfold({d}, 2, 1); {c}.diagonal();
    torch.zeros_like({c}); {c}.new_full((2, {n}), 1j); {c}.to(torch.complex128); torch.view_as_real({c}).flip(0);
    {c}.expand(2, *{c}.shape); {c}.nan_to_num()
    """),
    *_all("rounds", """
    {c} / ({c}.abs() + 1); {c}.exp().abs().clamp(max=9); {c}.angle(); {c}.mean({d}); torch.polar({f}.abs(), {f});
    {c}.sgn(); ({c} * 0.3).tanh(); {c}.abs().sum({d});
    torch.fft.fft({f}.float()); torch.fft.irfft(torch.fft.rfft({f}.float())); torch.fft.ifft({c}); ({c} + 9).log();
    ({c} + 9).sqrt(); ({c} + 9).reciprocal(); {c}.norm()
    """),
    *_all("decides", """
    {c} == {c}.flip({d}); {c} != 0; {c}.isfinite(); {c}.bool(); {c}.any({d}); {c}.real > 0; {c}.count_nonzero({d});
    {c}.logical_not()
    """),
    *_all("sums", """
    {c}.mul_(2); {c}.add_({c}); {c}.real.add_(1); {c}.imag.zero_(); {c}[..., 0] = {s}; {c}[0].mul_(1j);
    {c}.conj_physical_(); {c}.t().add_(1); {c}.copy_({a});
    torch.view_as_real({c}).mul_(2); {c}.index_add_(0, torch.arange({c}.shape[0]) // 2, {c}.clone()); {c}.fill_(2j);
    {c}.masked_fill_({m}, 1j); {c}.conj().mul_(2)
    """, True),
]  # fmt: skip

NUMBERS = [
    *_all("sums", """
    {a} * {i}.sum().item(); {a} + {i}.amax().item(); {a} * ({a}.shape[0] - {a}.shape[-1]);
    {a} + ({a}.shape[0] - 7) // 2; {a} * (({a}.shape[-1] - 9) % 4);
    {a} * (({a}.shape[0] - 7) // 2 % 3); {a} * max({a}.shape[0] - 5, 2); {a} + (3 if {a}.shape[0] > 6 else -3);
    torch.arange({i}.abs().amax().item() + 1) + 2;
    {a}.nonzero().shape[0] * torch.ones(2); torch.zeros({m}.sum().item() + 2) + 1; {a}[:{a}.shape[0] - 3];
    {a}[-{a}.shape[-1] // 2:]; {a}.sum() * {a}.nonzero().size(0);
    {a}.repeat_interleave(torch.arange({a}.shape[0]) % 3, 0); {i}.unique(); {i}.unique().shape[0] + {a};
    {a}[{a} > 0] * 2; {a}[{a} > 0].sum(); {a}.masked_select({m}) + 1;
    torch.cond({a}.sum() > 0, lambda x: x * 2, lambda x: x - 1, ({a},));
    torch.cond({a}.shape[0] > 6, lambda x: x + 1, lambda x: x.clone(), ({a},));
    torch.cond({i}.sum() > 0, lambda x, y: x + y, lambda x, y: x - y, ({f}, {g}));
    torch.ones({i}.abs().amax().item() + 1, 3).cumsum(0); {a}.split([1, {a}.shape[0] - 1])[1] * 2;
    torch._higher_order_ops.while_loop(lambda k, x: k < 3, lambda k, x: (k + 1, x + k), ({i}.new_zeros(()), {f}))[1];
    torch.arange({a}.shape[0] - 3, {a}.shape[0] + 3); torch.full(({n},), {a}.shape[-1] - 6);
    torch.arange({a}.shape[-1] - 8, 3, 2) * 1; {f} ** ({a}.shape[0] // 4);
    torch.arange(3) + {i}.sum().item() // 2; torch.arange(3) + {i}.sum().item() % 3; {a} * float({a}.shape[0] - 6);
    {a} + int({i}.amin().item() < 0); {a}.narrow(0, {a}.shape[0] - 2, 2) + 0
    """),
    *_all("rounds", """
    {f} * (1.0 / {a}.shape[0]); {f} / ({a}.shape[0] - 20); {f} * ({a}.shape[0] ** 0.5);
    torch.full(({n},), {a}.shape[-1] / 3); {f} * {f}.amax().item(); {f} + {i}.sum().item() / 3;
    torch.utils.checkpoint.checkpoint(lambda x: (x.sin() * x).sum(0) * x, {f}, use_reentrant=False);
    torch.linspace(0, 1, {n});
    torch.utils.checkpoint.checkpoint(lambda x: F.dropout(x.sigmoid(), 0.3), {f}, use_reentrant=False);
    {f} * ({a}.shape[0] - {a}.shape[-1]) / 7;
    torch._higher_order_ops.associative_scan(lambda x, y: x * 0.5 + y, {f}, 0, combine_mode="generic");
    {f}.sin().half().float() + 1; {f}.bfloat16() * 3 / 7
    """),
]  # fmt: skip

PLACES = [
    *_all("moves", """
    {a}.view({a}.shape[0], -1)[:, 0] = {s}; {a}.unflatten(-1, (-1, 1))[..., 0].zero_();
    {a}.scatter_({d}, torch.zeros_like({a}, dtype=torch.int64), {a}.flip({d}));
    {a}.t()[0] = {s}; {a}.select({d}, 0)[...] = {a}.select({d}, 1).clone();
    {a}.index_put_((torch.arange({a}.shape[0]).flip(0),), {a}[0]); {a}.masked_scatter_({m}, {a}.clone());
    {a}[..., ::2] = {a}[..., :1]; {a}.narrow({d}, 1, 1).copy_({a}.narrow({d}, 0, 1)); {a}.view(-1)[::2] = {s};
    {a}[torch.arange({a}.shape[0]) // 2] = {a}.clone();
    {a}.index_fill_({d}, torch.tensor([0, 1]), {s}); {a}.flatten()[0] = {s};
    {a}.put_(torch.tensor([0, 1]), {a}.flatten()[:2].clone()); {a}.swapaxes(0, -1)[1:] = {s};
    {a}[1:].copy_({a}[:-1].clone()); {a}.view(-1).unflatten(0, ({a}.shape[0], -1))[1].fill_({s});
    {a}.copy_({a}.t().contiguous().t()); torch.maximum({a}, {b}, out={a});
    {a}[:, None][0].zero_(); {a}.unbind({d})[-1].copy_({a}.unbind({d})[0].clone());
    {a}.movedim(0, -1)[..., 1:].zero_();
    {a}.permute(*range({a}.dim() - 1, -1, -1)).copy_({a}.clone().permute(*range({a}.dim() - 1, -1, -1)))
    """, True),
    *_all("sums", """
    {a}.view({a}.shape[0] // 2, 2, -1)[:, 1] += 1; {a}.view({a}.shape[0], {a}.shape[-1] // 2, 2)[..., 0] *= 2;
    {a}.reshape(-1)[1:] += 1; torch.add({a}, {b}, out={a});
    {a}.scatter_add_({d}, torch.zeros_like({a}, dtype=torch.int64), {a}.clone());
    {a}.t().index_add_(0, torch.tensor([0, 0]), {a}.t()[:2].clone()); {a}.pow_(2); {a}[0] += {a}[1];
    {a}.index_put_((torch.zeros(3, dtype=torch.int64),), {a}[:3].clone(), accumulate=True);
    {a}.select({d}, 0).add_({a}.select({d}, 1)); {a}.diagonal(1).mul_(3); {a}.add_({a}.mean().trunc());
    {a}.cumsum_({d}); {a}.as_strided(({a}.shape[0],), ({a}.stride(0),)).add_(1);
    {a}.scatter_reduce_({d}, torch.zeros_like({a}, dtype=torch.int64), {a}.clone(), "amax")
    """, True),
    *_all("decides", """
    {i}.floor_divide_(2); {i}.remainder_(3); {i}.bitwise_and_(3); {i}.__ilshift__(1); {i}.fmod_(-3); {a}.eq_(1);
    {a}.gt_(0); {i}.bitwise_xor_(-1)
    """, True),
]  # fmt: skip

TABLES = (
    (VIEWS, 9), (MOVES, 8), (SUMS, 7), (ROUNDS, 5), (DECIDES, 4), (WRITES, 8), (ATTENTION, 2), (WINDOWS, 3), (INTEGERS, 3),
    (COMPLEX, 2), (NUMBERS, 4), (PLACES, 4),
)  # fmt: skip
"""Tables with the weights by which they are drawn."""
