"""A trained model: which candidate it predicts to be fastest, how sure it is, and its file format.

Each tree corrects the logarithm of every candidate's predicted time. The mean over all trees ranks the candidates. The expected
loss of the first one follows from how far behind the others are predicted, how much the trees disagree about that, and the common
error of all trees (NOISE). Above the threshold, which was set by validation, the model is unsure. It does not answer for problems
outside the range of its training data.

A model is a JSON file of numbers and strings. Nothing in it is executed.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from polytile import files
from polytile.errors import PolytileError
from polytile.learn import features
from polytile.learn.forest import Forest
from polytile.learn.offer import Offer
from polytile.problem import Problem, digest
from polytile.runtime import device
from polytile.store import words

FORMAT, FORMAT_VERSION = "polytile model", 2
FEWEST_HELD_OUT = 10
"""Minimum number of held-out problems on which a model must have been tested."""

NEARLY = 1.5
"""Factor by which a device's numbers may differ from those in training: an H200 has 1.4 times the memory bandwidth of an H100."""

COMPETES = {"cuda": 2.0, "cpu": 8.0}
"""Candidates with at least this multiple of the best predicted time are not ranked.

Of 718 products on an H100 and an H200, the fastest was never among them. Of 3458 problems on a CPU, the fastest was beyond twice
the best predicted time in 2 %, and the model then lost up to 2.4 times.
"""

NOISE = 0.1
"""Common error of all trees as a logarithm of a time: about the error for candidates near the fastest. (From 0.05 to 0.2, a model
is sure of equally many problems within 2 %, on all the tables of benchmarks.learned.)"""


class ModelError(PolytileError):
    """A file cannot be read or is not a model, or the model is not to be used because it was not better than the prediction."""


@dataclass(frozen=True)
class Settings:
    """The settings with which trees were grown."""

    max_depth: int
    min_samples_leaf: int
    criterion: str
    trees: int


@dataclass(frozen=True)
class Tried:
    """The performance of a model on a set of examples, and of the analytical model on the same ones.

    set                     "train", "validation" or "test"
    correct, wrong, unsure  problems whose answer was within NOISE of the fastest, was not, or without an answer
    far                     the number of wrong answers beyond FAR
    max_wrong_speedup       time of the worst wrong answer relative to the fastest
    gman_wrong_speedup      geometric mean of that over the wrong answers
    answered                geometric mean of the answers' times relative to the fastest
    regret, p95             of first choices on all problems, sure or not: geometric mean, 95th percentile
    top3, top3_p95, top10   of the best among the first three (ten)
    prior, prior_p95, prior_top3   the same for the analytical model's ranking
    speedup, slowdown       geometric mean of the analytical choice's time over the answer's where the answer is faster, and
                            of the inverse where it is slower
    """

    set: str
    total: int
    correct: int
    wrong: int
    unsure: int
    far: int
    max_wrong_speedup: float
    gman_wrong_speedup: float
    answered: float
    regret: float
    p95: float
    worst: float
    top3: float
    top3_p95: float
    top10: float
    prior: float
    prior_p95: float
    prior_top3: float
    speedup: float
    slowdown: float


@dataclass(frozen=True)
class Judgement:
    """A model's judgement of a problem's candidates.

    Attributes
    ----------
    ranking
        Their names, the predicted fastest first.
    seconds
        The predicted time of each, up to a common factor.
    risk
        Expected loss of the first one to the fastest, as a logarithm.
    sure
        Whether the risk is low enough to use the first one.
    """

    ranking: tuple[str, ...]
    seconds: Mapping[str, float]
    risk: float
    sure: bool


@dataclass(frozen=True, eq=False)
class Trained:
    """A model for one family of problems on one architecture, such as "mm" on "cuda sm90".

    Attributes
    ----------
    names
        The features, in the order of the forest's rows.
    ranges
        Minimum and maximum of the features that all candidates of a problem share.
    known
        The words that occurred in training (features.words).
    trained_on
        A description of the training data, for people.
    """

    family: str
    architecture: str
    names: tuple[str, ...]
    forest: Forest
    ranges: Mapping[str, tuple[float, float]]
    known: frozenset[str]
    threshold: float
    settings: Settings
    reports: tuple[Tried, ...] = ()
    trained_on: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def name(self) -> str:
        """The name in the grounds of decisions: "trees for mm on cuda sm90 3f0c2a"."""
        return f"trees for {self.family} on {self.architecture} {self.digest}"

    @cached_property
    def digest(self) -> str:
        """Digest of the model's behaviour: the same for equal trees, ranges and threshold."""
        said = replace(self, reports=(), trained_on={})
        return digest(_text(said), 6)

    @property
    def on_gpu(self) -> bool:
        return self.architecture.startswith("cuda")

    @property
    def file_name(self) -> str:
        return f"{self.family}-{self.architecture.replace(' ', '-')}.json"

    def choose(self, problem: Problem, offers: Sequence[Offer]) -> str | None:
        """The candidate of which the model is sure; None if it is unsure, or the problem is outside its training range."""
        judgement = self.judge(problem, offers)
        return judgement.ranking[0] if judgement is not None and judgement.sure else None

    def expect(self, problem: Problem, offers: Sequence[Offer]) -> Mapping[str, float] | None:
        """The predicted seconds of each candidate, for a shortlist; None outside its training range."""
        judgement = self.judge(problem, offers)
        return judgement.seconds if judgement is not None else None

    def judge(self, problem: Problem, offers: Sequence[Offer]) -> Judgement | None:
        """The judgement of these candidates on the problem's device; None outside its training range."""
        if problem.family != self.family or features.architecture(dict(device.described(problem.device))) != self.architecture:
            return None
        return _judged(self, problem, tuple(offers))

    def judge_on(self, problem: Problem, machine: Mapping[str, str], offers: Sequence[Offer]) -> Judgement | None:
        """The same for a device with the facts `machine`, of any architecture."""
        able = competing(offers, self.on_gpu)
        rows = features.features(problem, machine, able) if able else []
        return self.of_rows(problem, able, rows)

    def of_rows(self, problem: Problem, offers: Sequence[Offer], rows: Sequence[features.Row]) -> Judgement | None:
        """The same for competing offers, by their features."""
        return self.judged(offers, rows) if rows and not self.why_outside(problem, offers, rows[0]) else None

    def judged(self, offers: Sequence[Offer], rows: Sequence[features.Row]) -> Judgement:
        said = self.forest.says([features.values(row, self.names) for row in rows])
        logs = [math.log(offer.predicted) for offer in offers]
        means = [log + sum(tree[k] for tree in said) / len(said) for k, log in enumerate(logs)]
        order = sorted(range(len(offers)), key=lambda k: means[k])  # ties stay in canonical order
        risk = expected_loss([[log + each for log, each in zip(logs, tree, strict=True)] for tree in said], order[0])
        seconds = {offers[k].name: math.exp(means[k]) for k in order}
        return Judgement(tuple(seconds), seconds, risk, risk <= self.threshold)

    def why_outside(self, problem: Problem, offers: Sequence[Offer], row: features.Row) -> str:
        """Why these candidates are outside the training range, as a sentence; "" if they are not. `row` has the features of one
        of them."""
        strange = features.words(problem, offers) - self.known
        if strange:
            return f"it was trained without {', '.join(sorted(strange))}"
        for name, (low, high) in self.ranges.items():
            value, slack = row.get(name, features.UNSAID), NEARLY if name.startswith("device.") else 1.0
            if not low / slack <= value <= high * slack:
                return f"{name} is {value:.6g}, and it was trained on {low:.6g} to {high:.6g}"
        return ""

    def why_unused(self) -> str:
        """Why the model is not to be used, as a sentence; "" if it beats the analytical model on held-out problems."""
        tested = next((report for report in self.reports if report.set == "test"), None)
        if tested is None or tested.total < FEWEST_HELD_OUT:
            count = tested.total if tested else 0
            return f"it was tried on {count} problems that it was not trained on, and {FEWEST_HELD_OUT} are needed"
        if tested.regret >= tested.prior:
            return (
                f"on {tested.total} problems held out its first choice takes {tested.regret:.3f} times the fastest's time, the "
                f"prediction's {tested.prior:.3f}"
            )
        return ""


@functools.lru_cache(maxsize=64)
def _judged(model: Trained, problem: Problem, offers: tuple[Offer, ...]) -> Judgement | None:
    """Memoised, as several links ask about one choice."""
    return model.judge_on(problem, dict(device.described(problem.device)), offers)


def competing(offers: Sequence[Offer], on_gpu: bool) -> list[Offer]:
    """The offers that a model ranks."""
    able = [offer for offer in offers if 0 < offer.predicted < math.inf]
    within = COMPETES["cuda" if on_gpu else "cpu"] * min((offer.predicted for offer in able), default=0.0)
    return [offer for offer in able if offer.predicted < within]


def expected_loss(said: Sequence[Sequence[float]], first: int) -> float:
    """An upper bound of the expected loss of candidate `first` to the fastest, as a logarithm: the sum of its expected losses to
    each other one.

    `said` has the logarithm of each candidate's time by each tree. The difference between two candidates is assumed to be
    normally distributed, with the mean and variance over the trees plus the variance of NOISE. The mean of its positive part is
    known as expected improvement (Jones, Schonlau and Welch 1998).
    """
    return sum(_improvement([tree[first] - tree[k] for tree in said]) for k in range(len(said[0])) if k != first)


def _improvement(gains: Sequence[float]) -> float:
    mean = sum(gains) / len(gains)
    deviation = math.sqrt(sum((gain - mean) ** 2 for gain in gains) / len(gains) + NOISE**2)
    z = mean / deviation
    density = math.exp(-0.5 * z * z) / math.sqrt(2 * math.pi)
    return deviation * density + mean * 0.5 * math.erfc(-z / math.sqrt(2))


def save(model: Trained, path: Path) -> None:
    """Write the model's file. Raises ModelError if that fails."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        files.write_text(path, _text(model))
    except OSError as error:
        raise ModelError(f"the model {path} cannot be written: {error.strerror or error}.") from None


def load(path: Path) -> Trained:
    """The model in a file. Raises ModelError if it cannot be read, is not a model, or has another version."""
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelError(f"the model {path} cannot be read: {error.strerror}.") from None
    except ValueError:
        raise ModelError(f"{path} is no model: it is not JSON.") from None
    if not isinstance(said, dict) or said.get("format") != FORMAT:
        raise ModelError(f"{path} is no model of polytile; `polytile learn train` writes them.")
    versions = said.get("version"), said.get("features")
    ours = FORMAT_VERSION, features.VERSION
    if versions != ours:
        raise ModelError(f"the model {path} is of version {versions}, and this polytile reads {ours}; train it again.")
    try:
        return _model(said)
    except (KeyError, TypeError, ValueError) as error:
        raise ModelError(f"the model {path} is damaged ({error}); train it again.") from None


def _text(model: Trained) -> str:
    forest = model.forest
    said = {
        "format": FORMAT,
        "version": FORMAT_VERSION,
        "features": features.VERSION,
        "family": model.family,
        "architecture": model.architecture,
        "threshold": model.threshold,
        "settings": asdict(model.settings),
        "trained_on": dict(model.trained_on),
        "reports": [asdict(report) for report in model.reports],
        "ranges": {name: list(ends) for name, ends in sorted(model.ranges.items())},
        "known": sorted(model.known),
        "names": list(model.names),
        "roots": list(forest.roots),
        "feature": list(forest.feature),
        "down": list(forest.down),
        "number": list(forest.number),
    }
    lines = [f" {json.dumps(name)}: {json.dumps(value)}" for name, value in said.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _model(said: Mapping[str, Any]) -> Trained:
    if max(said["feature"]) >= len(said["names"]) or not all(map(math.isfinite, said["number"])):
        raise ValueError("a node asks for a feature that is not there, or its number is none")
    architecture = str(said["architecture"])
    on_gpu = architecture.startswith("cuda")
    return Trained(
        str(said["family"]),
        architecture,
        tuple(words.feature(str(name), on_gpu) for name in said["names"]),
        Forest(
            tuple(map(int, said["roots"])),
            tuple(map(int, said["feature"])),
            tuple(map(int, said["down"])),
            tuple(map(float, said["number"])),
        ),
        {str(name): (float(low), float(high)) for name, (low, high) in said["ranges"].items()},
        frozenset(words.feature(str(word), on_gpu) for word in said["known"]),
        float(said["threshold"]),
        Settings(**said["settings"]),
        tuple(Tried(**report) for report in said["reports"]),
        dict(said["trained_on"]),
    )
