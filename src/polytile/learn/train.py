"""Training: forests that correct predictions, chosen by what their choices cost. Needs scikit-learn.

What is learned of a candidate is the logarithm of its time over its predicted time, less the mean of that over the problem's
candidates, as only differences decide. Candidates count the more the nearer they are to the fastest (NEAR): how slow the
slow ones are is of no use. The examples are in five parts by their sizes (Example.fold): one is held out for the report, one
validates, three are learned from. Of each combination of settings a forest is grown, and the one whose first choices cost
least in validation is taken. The threshold of being sure is the highest at which the answers in validation are as good as
asked (ANSWERED, FAR_SHARE). The same examples give the same bytes.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from polytile.errors import PolytileError
from polytile.learn import features
from polytile.learn.examples import FOLDS, TEST, Example
from polytile.learn.forest import Forest
from polytile.learn.model import Settings, Trained
from polytile.learn.score import FAR, Case, cases, geomean, tried

DEPTHS, LEAVES, CRITERIA = (8, 14), (3, 8), ("squared_error", "absolute_error")
TREES, MOST_LEAVES = 16, 256
"""Of a forest, and leaves of a tree, so that a table takes 64 KiB at most. On 254 products held out by size, first choices
took 1.034 times the fastest's time with these, 1.037 with 24 trees of 170 leaves, 1.030 with 50 trees as large as they grow,
of ten times the bytes. Random forests took 1.044, trees that predict the regret itself rather than correct predictions
1.049."""
GRID_ROWS = 20_000
"""Rows that settings are compared on, at most; the forest that is kept learns from all."""

NEAR = 0.5
"""The logarithm of a regret at which a candidate counts 1/e of what the fastest does."""
LEAST = 0.02
"""What those far behind count: their trees must still keep them behind."""

ANSWERED, FAR_SHARE = 1.012, 0.01
"""What answers may cost in validation, as a geometric mean; and what part of them may be far off."""

FEWEST = 20
"""Examples that a model is trained on, at least."""

SEED = 20


class TrainingError(PolytileError):
    """A model cannot be trained: there is too little to learn from, or scikit-learn is not installed."""


@dataclass(frozen=True)
class Table:
    """Examples as numbers: the features by name, a row for each offer of each example, what is to be learned of it, and how
    much it counts."""

    names: tuple[str, ...]
    rows: list[list[float]]
    corrections: list[float]
    weights: list[float]


def table(chosen: Sequence[Example]) -> Table:
    """The rows of all offers of these examples; those too that a model does not rank, as they tell of others like them. (On 254
    products held out by size, first choices took 1.036 times the fastest's time so, and 1.048 without them.)"""
    names = tuple(sorted({name for example in chosen for row in example.rows for name in row}))
    rows, corrections, weights = [], [], []
    for example in chosen:
        counted = [max(LEAST, (seconds / example.best) ** (-1.0 / NEAR)) for seconds in example.seconds]
        off = [math.log(seconds / offer.predicted) for seconds, offer in zip(example.seconds, example.offers, strict=True)]
        mean = sum(w * o for w, o in zip(counted, off, strict=True)) / sum(counted)
        rows += [features.values(row, names) for row in example.rows]
        corrections += [each - mean for each in off]
        weights += counted
    return Table(names, rows, corrections, weights)


Tell = Callable[[str], None]


def train(chosen: Sequence[Example], tell: Tell = lambda text: None, test: int = TEST) -> Trained:
    """The model of these examples, all of one family and architecture, of which the part `test` is held out and the next one
    validates. Raises TrainingError where there are too few of them, or no scikit-learn; ValueError for examples of several
    families."""
    if len({example.family for example in chosen}) > 1:
        raise ValueError("a model is of one family on one architecture; train one for each.")
    parts = [[example for example in chosen if example.fold == fold] for fold in range(FOLDS)]
    held, validation = parts[test], parts[(test + 1) % FOLDS]
    learned = [example for example in chosen if example.fold not in (test, (test + 1) % FOLDS)]
    if len(learned) < FEWEST or not held or not validation:
        raise TrainingError(
            f"there are {len(chosen)} problems to learn from, and {len(learned)} would be trained on; {FEWEST} are needed, and "
            "some to validate and to hold out. Collect more: polytile learn collect."
        )
    some = _some(learned)
    costs: dict[Settings, float] = {}
    for settings in grid():
        costs[settings] = geomean(each.regret for each in cases(grown(some, settings), validation))
        tell(f"depth {settings.max_depth}, {settings.min_samples_leaf} rows a leaf, {settings.criterion}: {costs[settings]:.4f}")
    settings = min(costs, key=lambda settings: costs[settings])
    judged = with_threshold(grown(learned, settings), validation)
    final = replace(grown([*learned, *validation], settings), threshold=judged.threshold)
    sets = tried("train", cases(final, learned)), *judged.reports, tried("test", cases(final, held))
    return replace(final, reports=sets)


def _some(learned: Sequence[Example]) -> list[Example]:
    """As many of the examples as have GRID_ROWS rows together, evenly chosen."""
    rows = sum(len(example.offers) for example in learned)
    step = max(1, -(-rows // GRID_ROWS))
    return list(learned[::step])


def held_out(chosen: Sequence[Example]) -> Iterator[tuple[Trained, list[Example]]]:
    """For each part of the examples a model that it took no part in, and the part."""
    for fold in range(FOLDS):
        yield train(chosen, test=fold), [example for example in chosen if example.fold == fold]


def grid() -> Iterator[Settings]:
    """All settings that are tried."""
    for depth, leaf, criterion in itertools.product(DEPTHS, LEAVES, CRITERIA):
        yield Settings(depth, leaf, criterion, TREES)


def with_threshold(model: Trained, validation: Sequence[Example]) -> Trained:
    """The model with the threshold that these examples give, and its report of them."""
    sure = replace(model, threshold=threshold(cases(replace(model, threshold=math.inf), validation)))
    return replace(sure, reports=(tried("validation", cases(sure, validation)),))


def threshold(found: Sequence[Case]) -> float:
    """The largest risk up to which answers cost no more than they may; less than any where there is none."""
    best, answered = -1.0, list[Case]()
    for each in sorted((each for each in found if math.isfinite(each.risk)), key=lambda each: each.risk):
        answered.append(each)
        far = sum(other.regret > FAR for other in answered)
        if far <= FAR_SHARE * len(answered) and geomean(other.regret for other in answered) <= ANSWERED:
            best = each.risk
    return round(best, 6)


def grown(learned: Sequence[Example], settings: Settings) -> Trained:
    """A model without threshold and reports. Raises TrainingError where scikit-learn is not installed."""
    try:
        import numpy
        from sklearn.ensemble import ExtraTreesRegressor
    except ImportError as error:
        raise TrainingError(f"training needs scikit-learn ({error}): pip install 'polytile[learn]'.") from None
    data = table(learned)
    regressor = ExtraTreesRegressor(
        n_estimators=settings.trees, max_depth=settings.max_depth, min_samples_leaf=settings.min_samples_leaf,
        max_leaf_nodes=MOST_LEAVES, criterion=settings.criterion, random_state=SEED, n_jobs=2,
    )  # fmt: skip
    regressor.fit(numpy.array(data.rows, numpy.float32), numpy.array(data.corrections), sample_weight=numpy.array(data.weights))
    family, architecture = learned[0].family
    rows = [example.rows[0] for example in learned]
    shared = [name for name in data.names if features.is_shared(name)]
    ends = {name: [row.get(name, features.UNSAID) for row in rows] for name in shared}
    return Trained(
        family,
        architecture,
        data.names,
        flat([estimator.tree_ for estimator in regressor.estimators_]),
        {name: (min(found), max(found)) for name, found in ends.items()},
        frozenset().union(*(features.words(example.problem, example.offers) for example in learned)),
        -1.0,
        settings,
        trained_on=_origin(learned),
    )


def flat(trees: Sequence[Any]) -> Forest:
    """scikit-learn's trees as one table, each in the order of its levels."""
    roots: list[int] = []
    feature: list[int] = []
    down: list[int] = []
    number: list[float] = []
    for tree in trees:
        roots.append(len(feature))
        waiting = [0]
        for place, node in enumerate(waiting):
            left, right = int(tree.children_left[node]), int(tree.children_right[node])
            leaf = left < 0
            feature.append(-1 if leaf else int(tree.feature[node]))
            down.append(0 if leaf else len(waiting) - place)
            number.append(_short(float(tree.value[node].item() if leaf else tree.threshold[node])))
            if not leaf:
                waiting += [left, right]
    return Forest(tuple(roots), tuple(feature), tuple(down), tuple(number))


def _short(number: float) -> float:
    """To six digits: what is beyond is noise, and the file is read by people."""
    return float(f"{number:.6g}")


def _origin(learned: Sequence[Example]) -> dict[str, Any]:
    devices = Counter(example.machine.get("name") or example.machine.get("model", "?") for example in learned)
    return {
        "problems": len(learned),
        "measurements": sum(len(example.offers) for example in learned),
        "kernels": len({example.problem.kernel for example in learned}),
        "devices": dict(sorted(devices.items())),
    }
