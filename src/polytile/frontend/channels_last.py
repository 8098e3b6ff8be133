"""Lays out the images of convolutions with their channels last (NHWC), along with the operators between them.

    c = convolution(x, w)        x: N, C, H, W row by row    →   x' = clone(x): N, H, W, C in memory
    y = relu(c * s + b)          c, y: row by row            →   c, y: N, H, W, C in memory
    z = convolution(y, v)                                    →   z = convolution(y, v), nothing laid out anew

The kernels of oneDNN and cuDNN compute on vectors of channels. Given NCHW, they gather every input and scatter every result in
each call, which costs more than a conversion. So images that convolutions read and write are laid out channels-last, and so are
those between them that pointwise and window operators produce, wherever this moves fewer bytes in total (layout_cost.py). That is
the case for a chain of convolutions or a transposed one, but not for a single cheap one. The graph's results, and everything that
depends on memory layout (views, library calls), keep the traced strides.

No operator runs for this. The strides of the fake tensor in `meta["val"]` say how a value is stored, and a `clone` is the same
value in other strides.

ATen's convolution alone, with two threads of a Zen 5 (`python -m benchmarks.convolutions`, 15 shapes of 1×1 to 7×7 windows, 3 to
512 channels), is 1.22 times as fast in float32 and 1.33 in bfloat16 (geometric mean), its backward pass 1.32 and 1.44. It is
slower, down to 0.77, for large weights and tiny images, because the call then converts the weights too. Weights are therefore
packed (runtime/convolution.py), or converted by a kernel of polytile's. Groups of few channels make the vectors of a GroupNorm's
loops short.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import Any

import torch
import torch.fx
from torch._prims_common import make_channels_last_strides_for
from torch._subclasses.fake_tensor import FakeTensor
from torch.fx.experimental.symbolic_shapes import statically_known_true
from torch.utils._pytree import tree_leaves, tree_map

from polytile import options
from polytile.frontend.hints import traced_size
from polytile.frontend.layout_cost import NEVER, Cost, Layouts, bytes_of, cost_of
from polytile.frontend.lower.overloads import overloads
from polytile.frontend.lower.pads import PAD_ROWS
from polytile.frontend.lower.random import is_drawn
from polytile.frontend.lower.registry import TABLE, load
from polytile.frontend.placement import is_view
from polytile.frontend.resizing import UPSAMPLE

aten = torch.ops.aten

TRACED = "polytile_traced"
"""The `meta` key under which a node with a changed layout keeps the value that was traced."""

DTYPES = {"cpu": (torch.float32, torch.bfloat16, torch.float16), "cuda": (torch.bfloat16, torch.float16)}
"""Dtypes of channels-last convolutions by device type. Tensor cores work on such images, so cuDNN converts others in each call
(docs/convolutions.md). In float32, cuDNN may round to TF32 for such images where it does not in planes: by 1e-4 where eager is
off by 1e-6 (an H200, 3×3 windows over 16 channels)."""

TRAINED = (torch.float32,)
"""Dtypes whose backward pass is correct in channels-last layout."""

IMAGES: dict[Any, int] = {aten.convolution.default: 1, aten.convolution_backward.default: 2}
"""How many of a convolution's first arguments are images."""

WINDOWS: dict[Any, int] = dict.fromkeys(
    overloads(
        "_to_copy alias detach avg_pool2d avg_pool2d_backward cat constant_pad_nd max_pool2d_with_indices "
        "max_pool2d_with_indices_backward _unsafe_index.Tensor"
    ), 1,
) | {aten._unsafe_index_put.default: 3, UPSAMPLE: 1, PAD_ROWS: 1}  # fmt: skip
"""Operators that are not pointwise, but whose results may follow the layout of the images among this many first arguments."""

PARTS = (aten.slice.Tensor,)
"""Views of images that are images themselves: values computed from a part follow the layout of the whole."""


def lay_channels_last(graph: torch.fx.Graph, training: bool, weights: Mapping[str, str] | None = None) -> None:
    """Make convolutions read and write channels-last images where that costs less (layout_cost.py).

    Parameters
    ----------
    graph
        A graph of functional ATen operators whose nodes have fake values. It returns the same values in the same strides
        afterwards.
    training
        Only convolutions of a dtype in TRAINED take part, and their weights are converted too, as no packed copy is kept then.
    weights
        Kinds of the inputs that are weights (see weights_of).
    """
    load()
    laid = Images()
    convolutions = [node for node in graph.nodes if _may_gain(node) and not (training and _dtype(node) not in TRAINED)]
    convolutions, makers = _cheapest(graph, convolutions, training, weights or {})
    makers |= {node for node in convolutions if not _is_backward(node)}  # also returned ones: a generated kernel converts them
    traced: dict[torch.fx.Node, Any] = {}
    for node in graph.nodes:
        if node in makers or (_picks(node) and node.args[0] in makers and not _returned(node)):
            traced[node] = node.meta[TRACED] = node.meta["val"]
            node.meta["val"] = tree_map(lambda value: laid.channels_last(value) if _is_image(value) else value, traced[node])
    for node, value in traced.items():
        readers = [user for user in node.users if user not in makers and user not in convolutions and not _picks(user)]
        if not (_is_image(value) and _is_channels_last(value)):
            _read_through_clone(node, [user for user in readers if not _takes_any_layout(user)], value)
    readers_of: dict[torch.fx.Node, list[torch.fx.Node]] = {}
    for convolution in convolutions:
        for argument in dict.fromkeys([*_images(convolution), *([_weight(convolution)] if training else [])]):
            readers_of.setdefault(argument, []).append(convolution)
    for node, readers in readers_of.items():
        if not _is_channels_last(node.meta["val"]):
            _read_through_clone(node, readers, laid.channels_last(node.meta["val"]))


def _cheapest(
    graph: torch.fx.Graph, convolutions: Sequence[torch.fx.Node], training: bool, weights: Mapping[str, str]
) -> tuple[list[torch.fx.Node], set[torch.fx.Node]]:
    """The convolutions that read channels-last images, and the operators whose results are channels-last."""
    makers, layouts = _makers(convolutions), Layouts()
    free = {*makers, *convolutions, *(node for node in graph.nodes if node.target in PARTS)}
    for node in convolutions:
        layouts.add(node, _cost(node, training, weights))
    for node in graph.nodes:
        value = node.meta.get("val")
        if not _is_image(value):
            continue
        stored: Hashable = _maker(node)
        if node.target not in PARTS and (stored not in makers or _returned(node)):  # must be stored as traced
            stored = ("traced", node)
            layouts.add(stored, Cost(NEVER, 0.0) if _is_channels_last(value) else Cost(0.0, NEVER))
            layouts.read(_maker(node), [stored] if _maker(node) in convolutions else [], bytes_of(value))
        readers = [user for user in node.users if user in free and (user.target in PARTS or node in _images(user))]
        fixed = [("traced", node) for user in node.users if user not in free and not _takes_any_layout(user)]
        layouts.read(stored, [*readers, *fixed], bytes_of(value))
        layouts.add(("traced", node), Cost(0.0, NEVER if fixed and not _is_channels_last(value) else 0.0))
    last = layouts.cheapest()
    return [node for node in convolutions if node in last], {node for node in makers if node in last}


def _cost(convolution: torch.fx.Node, training: bool, weights: Mapping[str, str]) -> Cost:
    """The cost of a convolution in either layout. A backward pass counts as two convolutions."""
    weight, given = _weight(convolution), convolution.args
    images = [*map(_value, _images(convolution)), *filter(_is_image, _values(convolution))]
    groups: Any = given[-2 if _is_backward(convolution) else -1]
    kept = weights.get(weight.name) == "constant" and options.get("packed_weights_mib") > 0
    return cost_of(
        sum(map(bytes_of, images)) * (2 if _is_backward(convolution) else 1),
        bytes_of(_value(weight)),
        points=math.prod(map(traced_size, _value(weight).shape[2:])),
        groups=traced_size(groups.meta["val"] if isinstance(groups, torch.fx.Node) else groups),
        filters=traced_size(_value(weight).shape[1]),
        transposed=_transposed(convolution),
        way="laid out" if training else "packed" if kept else "plain",
    )


def _may_gain(node: torch.fx.Node) -> bool:
    """Whether `node` is a convolution that may be faster in channels-last layout."""
    if node.target not in IMAGES:
        return False
    image = _value(_node(node, 0))
    fit = _is_image(image) and image.dtype in DTYPES.get(image.device.type, ())
    return fit and (not _is_backward(node) or (not _transposed(node) and _is_right_backward(node)))


def _is_backward(node: torch.fx.Node) -> bool:
    return node.target is aten.convolution_backward.default


def _transposed(convolution: torch.fx.Node) -> bool:
    return next(argument for argument in convolution.args[4:] if isinstance(argument, bool))


def _value(node: torch.fx.Node) -> torch.Tensor:
    value: torch.Tensor = node.meta["val"]
    return value


def _is_right_backward(node: torch.fx.Node) -> bool:
    """Whether oneDNN's backward pass is correct in channels-last layout.

    That of a strided 1×1 convolution writes out of bounds. In bfloat16, weight gradients are wrong with groups and dilation, or
    with windows larger than the image. (torch 2.13, AVX-512; 5724 random convolutions of three dtypes under a checking malloc, in
    which float32 had no other fault.)
    """
    steps = node.args[4]
    assert isinstance(steps, list | tuple)
    stepping = all(n == 1 for n in _weight(node).meta["val"].shape[2:]) and any(n != 1 for n in steps)
    return _dtype(node) in TRAINED and not stepping


def _dtype(convolution: torch.fx.Node) -> torch.dtype:
    image: torch.Tensor = _node(convolution, 0).meta["val"]
    return image.dtype


def _makers(convolutions: Iterable[torch.fx.Node]) -> set[torch.fx.Node]:
    """Nodes whose image results may be channels-last: the convolutions, and every operator that is connected to one through
    images only and can follow its layout."""
    found: set[torch.fx.Node] = set()
    seen: set[torch.fx.Node] = set()
    ahead = [*convolutions, *(_maker(image) for convolution in convolutions for image in _images(convolution))]
    while ahead:
        node = ahead.pop()
        if node in seen or not (node.target in PARTS or _can_follow(node)):
            continue
        seen.add(node)
        if node.target not in PARTS:
            found.add(node)
        ahead += [_maker(image) for image in _images(node)]
        ahead += [reader for user in node.users for reader in (user.users if _picks(user) else (user,))]
    return found


def _can_follow(node: torch.fx.Node) -> bool:
    """Whether an operator's results may have any layout, and prefer that of its images."""
    if node.op != "call_function" or _returned(node) or not any(map(_is_image, _values(node))):
        return False
    if node.target in IMAGES:
        return _may_gain(node)
    tags = getattr(node.target, "tags", ())
    pointwise = torch.Tag.pointwise in tags and not is_drawn(node.target)
    return (pointwise or node.target in WINDOWS) and bool(_images(node))


def _images(node: torch.fx.Node) -> list[torch.fx.Node]:
    """The arguments of an operator that are images like its result."""
    first = IMAGES.get(node.target) or WINDOWS.get(node.target) or len(node.args)
    given = [item for argument in node.args[:first] for item in (argument if isinstance(argument, list | tuple) else [argument])]
    return [item for item in given if isinstance(item, torch.fx.Node) and _is_image(item.meta.get("val"))]


def _weight(convolution: torch.fx.Node) -> torch.fx.Node:
    return _node(convolution, IMAGES[convolution.target])


def _node(node: torch.fx.Node, k: int) -> torch.fx.Node:
    """Argument `k` of `node`, a tensor."""
    argument = node.args[k]
    assert isinstance(argument, torch.fx.Node)
    return argument


def _takes_any_layout(node: torch.fx.Node) -> bool:
    """Whether an operator's lowering reads values independently of their layout. Random numbers fill memory in an order that
    follows the strides of an argument."""
    tensors = node.op == "output" or any(isinstance(value, torch.Tensor) for value in _values(node))
    lowered = node.target in TABLE and not is_view(node.target) and not is_drawn(node.target)
    return not tensors or (lowered and node.target not in IMAGES)


def _read_through_clone(node: torch.fx.Node, readers: list[torch.fx.Node], value: torch.Tensor) -> None:
    """Give `readers` the value of `node` in the strides of `value`."""
    if not readers:
        return
    with node.graph.inserting_after(node):
        clone = node.graph.call_function(aten.clone.default, (node,))
    clone.meta = {name: kept for name, kept in node.meta.items() if name != TRACED} | {"val": value}
    for reader in readers:
        reader.replace_input_with(node, clone)


def _maker(image: torch.fx.Node) -> torch.fx.Node:
    """The operator that returns an image, possibly among several results."""
    return _node(image, 0) if _picks(image) else image


def _picks(node: torch.fx.Node) -> bool:
    return node.target is operator.getitem


def _returned(node: torch.fx.Node) -> bool:
    return any(user.op == "output" for user in node.users)


def _values(node: torch.fx.Node) -> list[Any]:
    return tree_leaves(node.meta.get("val"))


def _is_image(value: Any) -> bool:
    return isinstance(value, FakeTensor) and value.ndim == 4 and value.layout is torch.strided


def _is_channels_last(value: torch.Tensor) -> bool:
    strides = zip(value.shape, value.stride(), make_channels_last_strides_for(value.shape), strict=True)
    return all(statically_known_true(n == 1) or statically_known_true(a == b) for n, a, b in strides)


class Images:
    """Fake images in channels-last layout, one for each shape, dtype and device: with symbolic sizes each takes a millisecond to
    make, and a network has a few shapes in hundreds of values."""

    def __init__(self) -> None:
        self._made: dict[Hashable, torch.Tensor] = {}

    def channels_last(self, value: torch.Tensor) -> torch.Tensor:
        """An image like `value`, but stored with its channels last."""
        shape = tuple(n.node.expr if isinstance(n, torch.SymInt) else n for n in value.shape)
        key = (shape, value.dtype, value.device)
        if key not in self._made:
            self._made[key] = value.new_empty_strided(value.shape, make_channels_last_strides_for(value.shape))
        return self._made[key]
