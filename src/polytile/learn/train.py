"""Training: forests that correct predictions, selected by the cost of their choices. Needs scikit-learn.

The target for a candidate is the logarithm of its time over its predicted time, less the mean over the problem's candidates, as
only differences decide. Candidates are weighted by how close they are to the fastest (NEAR), as the times of slow ones do not
matter. Each problem has the same total weight.

The examples are in five folds by their sizes (Example.fold), one of which is held out for the report. The others are split into
four parts for cross-validation, by kernel if there are many, since programs mostly ask about kernels without data. The cost of
the resulting choices selects the settings, and sets the threshold of being sure: the highest at which answers are as good as
required (ANSWERED, FAR_SHARE, MOST_FAR). The final forest learns from all four parts. The same examples give the same bytes.
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
"""Trees per forest, and leaves per tree, so that a table takes at most 64 KiB.

On 254 products held out by size, first choices took 1.034 times the fastest's time with these, 1.037 with 24 trees of 170 leaves,
and 1.030 with 50 unbounded trees, which take ten times the bytes. Random forests took 1.044, and trees that predict the regret
itself instead of correcting predictions 1.049.
"""
GRID_ROWS = 8_000
"""Maximum number of rows on which settings are compared. The final forest learns from all."""

NEAR = 0.5
"""The logarithm of the regret at which a candidate's weight falls to 1/e."""
LEAST = 0.02
"""Minimum relative weight of slow candidates: trees must still keep them behind."""

ANSWERED, FAR_SHARE = 1.012, 0.01
"""Limits in validation: the geometric mean of the answers' regrets, and the share of answers far off."""
MOST_FAR, CONFIDENCE = 0.02, 0.9
"""Limit on the share of all such answers that are far off, with this confidence. Fewer than 114 answers in validation cannot
establish that, even if none of them is far off."""

MANY_KERNELS = 12
"""Minimum number of kernels for splitting by kernel in validation.

Of 17 kernels of loops on a CPU, models that had learned from other kernels chose at 1.027 times the fastest's time, those that
had seen them at other sizes at 1.015, and the analytical model at 1.048.
"""

FEWEST = 20
"""Minimum number of training examples."""

SEED = 20

MISSING = "training needs scikit-learn ({}): pip install 'polytile[learn]'."


class TrainingError(PolytileError):
    """A model cannot be trained: there is too little to learn from, or scikit-learn is not installed."""


@dataclass(frozen=True)
class Table:
    """Examples as numbers: the names of the features, and for each offer of each example a row, its target and its weight."""

    names: tuple[str, ...]
    rows: list[list[float]]
    corrections: list[float]
    weights: list[float]


def table(chosen: Sequence[Example]) -> Table:
    """The rows of all offers of these examples, including those that a model does not rank, as they are informative about similar
    ones. (On 254 products held out by size, first choices took 1.036 times the fastest's time with them, and 1.048 without.)"""
    names = tuple(sorted({name for example in chosen for row in example.rows for name in row}))
    rows, corrections, weights = [], [], []
    for example in chosen:
        near = [max(LEAST, (seconds / example.best) ** (-1.0 / NEAR)) for seconds in example.seconds]
        counted = [each / sum(near) for each in near]
        off = [math.log(seconds / offer.predicted) for seconds, offer in zip(example.seconds, example.offers, strict=True)]
        mean = sum(w * o for w, o in zip(counted, off, strict=True))
        rows += [features.values(row, names) for row in example.rows]
        corrections += [each - mean for each in off]
        weights += counted
    return Table(names, rows, corrections, weights)


Tell = Callable[[str], None]


def train(chosen: Sequence[Example], tell: Tell = lambda text: None, test: int = TEST) -> Trained:
    """Train a model on these examples, all of one family and architecture, with fold `test` held out.

    Raises
    ------
    TrainingError
        If there are too few examples, or scikit-learn is not installed.
    ValueError
        If the examples belong to several families.
    """
    if len({example.family for example in chosen}) > 1:
        raise ValueError("a model is of one family on one architecture; train one for each.")
    held = [example for example in chosen if example.fold == test]
    learned = [example for example in chosen if example.fold != test]
    parts = _dealt(learned)
    if len(learned) < FEWEST or not held or len(parts) < 2:
        raise TrainingError(
            f"there are {len(chosen)} problems to learn from, and {len(learned)} would be trained on; {FEWEST} are needed, and "
            "some to hold out. Collect more: polytile learn collect."
        )
    settings = _settings(parts, tell)
    fresh = _fresh_cases(parts, settings)
    final = replace(grown(learned, settings), threshold=threshold(fresh))
    fresh = [replace(each, sure=each.risk <= final.threshold) for each in fresh]
    sets = tried("train", cases(final, learned)), tried("validation", fresh), tried("test", cases(final, held))
    return replace(final, reports=sets)


Parts = Sequence[Sequence[Example]]


def _dealt(learned: Sequence[Example]) -> Parts:
    """Split the examples for validation: by whole kernels if there are MANY_KERNELS, those with the most examples first;
    otherwise by sizes."""
    counts = Counter(example.problem.kernel for example in learned)
    if len(counts) < MANY_KERNELS:
        folds = [[example for example in learned if example.fold == fold] for fold in range(FOLDS)]
    else:
        ordered = sorted(counts, key=lambda kernel: (-counts[kernel], kernel))
        dealt = [frozenset(ordered[first :: FOLDS - 1]) for first in range(FOLDS - 1)]
        folds = [[example for example in learned if example.problem.kernel in part] for part in dealt]
    return [part for part in folds if part]


def _settings(parts: Parts, tell: Tell) -> Settings:
    """The settings with the lowest cost of first choices in cross-validation."""
    rows = sum(len(example.offers) for part in parts for example in part)
    step = max(1, -(-rows // GRID_ROWS))
    some = [part[::step] for part in parts]
    costs: dict[Settings, float] = {}
    for settings in grid():
        costs[settings] = geomean(each.regret for each in _fresh_cases(some, settings))
        tell(f"depth {settings.max_depth}, {settings.min_samples_leaf} rows a leaf, {settings.criterion}: {costs[settings]:.4f}")
    return min(costs, key=lambda settings: costs[settings])


def _fresh_cases(parts: Parts, settings: Settings) -> list[Case]:
    """The score on each part of a model trained on the other parts."""
    fresh: list[Case] = []
    for place, part in enumerate(parts):
        others = [example for other in (*parts[:place], *parts[place + 1 :]) for example in other]
        fresh += cases(grown(others, settings), part)
    return fresh


def held_out(chosen: Sequence[Example]) -> Iterator[tuple[Trained, list[Example]]]:
    """For each fold of the examples, a model trained without it, and the fold."""
    for fold in range(FOLDS):
        yield train(chosen, test=fold), [example for example in chosen if example.fold == fold]


def grid() -> Iterator[Settings]:
    """The settings of all trees that training tries."""
    for depth, leaf, criterion in itertools.product(DEPTHS, LEAVES, CRITERIA):
        yield Settings(depth, leaf, criterion, TREES)


def threshold(found: Sequence[Case]) -> float:
    """The largest risk up to which answers are within the limits on cost and on the share far off; -1 if there is none. The bound
    of MOST_FAR is distribution-free."""
    ordered = sorted((each for each in found if math.isfinite(each.risk)), key=lambda each: each.risk)
    best, far, lost = -1.0, 0, 0.0
    for count, each in enumerate(ordered, 1):
        far, lost = far + (each.regret > FAR), lost + math.log(each.regret)
        is_last = count == len(ordered) or ordered[count].risk > each.risk
        good = lost <= count * math.log(ANSWERED) and far <= FAR_SHARE * count
        if is_last and good and largest_share(far, count) <= MOST_FAR:
            best = each.risk
    return round(best, 6)


def largest_share(found: int, count: int) -> float:
    """Upper confidence bound (CONFIDENCE) of a share, `found` of `count` in a sample (Clopper and Pearson 1934). Raises
    TrainingError without scikit-learn."""
    try:
        from scipy.special import betaincinv
    except ImportError as error:
        raise TrainingError(MISSING.format(error)) from None
    return float(betaincinv(found + 1, count - found, CONFIDENCE)) if found < count else 1.0


def grown(learned: Sequence[Example], settings: Settings) -> Trained:
    """A model without threshold and reports. Raises TrainingError without scikit-learn."""
    try:
        import numpy
        from sklearn.ensemble import ExtraTreesRegressor
    except ImportError as error:
        raise TrainingError(MISSING.format(error)) from None
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
        {name: (min(values), max(values)) for name, values in ends.items()},
        frozenset().union(*(features.words(example.problem, example.offers) for example in learned)),
        -1.0,
        settings,
        trained_on=_origin(learned),
    )


def flat(trees: Sequence[Any]) -> Forest:
    """scikit-learn's trees as one table, each in level order."""
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
    """Round to six digits: the rest is noise, and people read the file."""
    return float(f"{number:.6g}")


def _origin(learned: Sequence[Example]) -> dict[str, Any]:
    devices = Counter(example.machine.get("name") or example.machine.get("model", "?") for example in learned)
    return {
        "problems": len(learned),
        "measurements": sum(len(example.offers) for example in learned),
        "kernels": len({example.problem.kernel for example in learned}),
        "devices": dict(sorted(devices.items())),
    }
