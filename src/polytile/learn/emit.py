"""Writes a model as plain Python, for people to read and for programs without polytile: the same trees give the same answers."""

from __future__ import annotations

from collections.abc import Iterator

from polytile.learn.model import Trained, Tried

HEAD = '''"""Which candidate is fastest: {name}.

{about}
Written by `polytile learn`; the text depends on nothing. `choose` takes for each candidate, in canonical order, its
predicted seconds and its features (polytile.learn.features) and gives the name of the fastest, or None where it is unsure.
"""

import math

THRESHOLD = {threshold!r}

RANGES = {{
{ranges}
}}


class Features(dict):
    """Features by name; what a candidate does not say is -1, and a word that it does not have 0."""

    def __missing__(self, name):
        return 0.0 if "=" in name else -1.0
'''

TAIL = '''

TREES = ({trees},)


def choose(candidates):
    """`candidates`: name → (predicted seconds, features)."""
    rows = {{name: (math.log(seconds), Features(found)) for name, (seconds, found) in candidates.items()}}
    for name, (low, high) in RANGES.items():
        slack = {nearly} if name.startswith("device.") else 1.0
        if not all(low / slack <= x[name] <= high * slack for _, x in rows.values()):
            return None
    said = [{{name: log + tree(x) for name, (log, x) in rows.items()}} for tree in TREES]
    means = {{name: sum(tree[name] for tree in said) / len(said) for name in rows}}
    first = min(means, key=means.get)
    risk = sum(improvement([tree[first] - tree[name] for tree in said]) for name in rows if name != first)
    return first if risk <= THRESHOLD else None


def improvement(gains):
    mean = sum(gains) / len(gains)
    deviation = math.sqrt(sum((gain - mean) ** 2 for gain in gains) / len(gains) + {noise} ** 2)
    z = mean / deviation
    density = math.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)
    return deviation * density + mean * 0.5 * math.erfc(-z / math.sqrt(2))
'''


def python(model: Trained) -> str:
    """The text of a module."""
    from polytile.learn.model import NEARLY, NOISE

    ranges = "\n".join(f"    {name!r}: ({low!r}, {high!r})," for name, (low, high) in sorted(model.ranges.items()))
    head = HEAD.format(name=model.name, about=about(model), threshold=model.threshold, ranges=ranges)
    trees = [_tree(model, number) for number in range(len(model.forest.roots))]
    names = ", ".join(f"tree_{number}" for number in range(len(trees)))
    return head + "".join(trees) + TAIL.format(trees=names, nearly=NEARLY, noise=NOISE)


def about(model: Trained) -> str:
    """How the model was trained and how it performed, one sentence per line."""
    on = model.trained_on
    devices = ", ".join(f"{name} ({count})" for name, count in on.get("devices", {}).items())
    grown = model.settings
    size = f"{model.forest.table_bytes / 1024:.0f} KiB"
    lines = [
        f"Trained on {on.get('problems', 0)} problems ({on.get('measurements', 0)} measurements) of {devices or 'no device'}.",
        f"{grown.trees} trees, depth up to {grown.max_depth}, {grown.min_samples_leaf} rows a leaf or more, {grown.criterion}; "
        f"{size}.",
        *(f"{report.set.capitalize()}: {sentence(report)}" for report in model.reports),
    ]
    return "\n".join(lines) + "\n"


def sentence(report: Tried) -> str:
    """The report of a model in one sentence."""
    answers = f"{report.correct} right, {report.wrong} wrong, {report.unsure} unsure"
    return (
        f"{report.total} problems, {answers}; the worst wrong answer took {report.max_wrong_speedup:.2f} times the fastest's "
        f"time; first choices take {report.regret:.3f} times the fastest's, the prediction's {report.prior:.3f}."
    )


def _tree(model: Trained, number: int) -> str:
    lines = _lines(model, model.forest.roots[number], "    ")
    return f"\n\ndef tree_{number}(x):\n" + "\n".join(lines) + "\n"


def _lines(model: Trained, node: int, indent: str) -> Iterator[str]:
    forest = model.forest
    feature, said = forest.feature[node], forest.number[node]
    if feature < 0:
        yield f"{indent}return {said!r}"
        return
    yield f"{indent}if x[{model.names[feature]!r}] <= {said!r}:"
    below = node + forest.down[node]
    yield from _lines(model, below, indent + "    ")
    yield from _lines(model, below + 1, indent)
