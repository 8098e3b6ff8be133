"""In which order Kernel Tuner's strategies try the candidates of a recorded matrix, in its simulation mode.

The parameters are the numbers and words of the candidates' configs; a combination that was not recorded is one that its
restrictions forbid. A strategy counts as ended when it has tried everything, has asked REPEATED times as often as there are
candidates, or has computed for SECONDS: in spaces of 10 to 150 some go round the same few for good, or seek neighbours that are
not there.
"""

from __future__ import annotations

import contextlib
import io
import json
import random
import signal
import tempfile
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from polytile.tuning.replay import Matrix, Recorded

STRATEGIES = ("random_sample", "greedy_mls", "genetic_algorithm", "simulated_annealing", "basinhopping")
REPEATED, SECONDS = 10, 0.5
MISSING = -1
"""A parameter that a config has not."""


def orders(measured: Sequence[Matrix]) -> dict[str, list[list[float]]]:
    """Times over the fastest, in the order of each strategy's first looks, for each matrix; by strategy. Nothing where Kernel
    Tuner is not installed."""
    try:
        import kernel_tuner  # noqa: F401
    except ImportError:
        return {}
    return {
        f"Kernel Tuner, {strategy}": [_order(matrix, strategy, seed) for seed, matrix in enumerate(measured)]
        for strategy in STRATEGIES
    }


def _order(matrix: Matrix, strategy: str, seed: int) -> list[float]:
    (problem,) = matrix.problems
    candidates = matrix.candidates[problem]
    best = matrix.best(problem).score.seconds
    space = _space(candidates)
    times = [candidate.score.seconds / best for candidate in candidates]
    by_key = dict(zip(map(_key, space), times, strict=True))
    return [by_key[key] for key in _tried(space, times, strategy, seed)]


def _space(candidates: Sequence[Recorded]) -> list[dict[str, int]]:
    """The parameters of each candidate; words by their number."""
    configs = [dict(candidate.config.values) for candidate in candidates]
    names = sorted({name for config in configs for name in config})
    said = {name: sorted({str(config[name]) for config in configs if isinstance(config.get(name), str)}) for name in names}

    def value(config: Mapping[str, Any], name: str) -> int:
        found = config.get(name, MISSING)
        return said[name].index(found) if isinstance(found, str) else int(found)

    rows = [{name: value(config, name) for name in names} for config in configs]
    varying = [name for name in names if len({row[name] for row in rows}) > 1]
    return [{name: row[name] for name in varying} for row in rows]


def _key(row: Mapping[str, int]) -> str:
    return ",".join(map(str, row.values()))


def _tried(space: Sequence[Mapping[str, int]], times: Sequence[float], strategy: str, seed: int) -> list[str]:
    """The keys of the candidates in the order in which the strategy asks for them first."""
    import numpy
    from kernel_tuner import tune_kernel
    from kernel_tuner.runners import simulation
    from kernel_tuner.util import StopCriterionReached

    seen: dict[str, None] = {}
    asked = [0]

    class Watched(simulation.SimulationRunner):
        def run(self, parameter_space: Any, tuning_options: Any) -> Any:
            elements = list(parameter_space)
            seen.update(dict.fromkeys(",".join(map(str, element)) for element in elements))
            asked[0] += len(elements)
            if asked[0] > REPEATED * len(space):
                raise StopCriterionReached("it goes round in circles")
            return super().run(elements, tuning_options)

    def recorded(row: Mapping[str, int]) -> bool:  # Kernel Tuner takes no lambda for one that is asked of a whole row
        return _key({name: row[name] for name in parameters}) in allowed

    def too_long(*_: object) -> None:
        raise StopCriterionReached("it has computed for too long")

    allowed = {_key(row) for row in space}
    parameters = {name: sorted({row[name] for row in space}) for name in space[0]}
    random.seed(seed)
    numpy.random.seed(seed)
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        cache = Path(folder) / "cache.json"
        cache.write_text(json.dumps(_cache(space, times, parameters)))
        signal.signal(signal.SIGVTALRM, too_long)
        with mock.patch.object(simulation, "SimulationRunner", Watched), contextlib.suppress(StopCriterionReached):
            signal.setitimer(signal.ITIMER_VIRTUAL, SECONDS)
            tune_kernel(
                "recorded", "__global__ void recorded() {}", 1, [], parameters, lang="CUDA", cache=str(cache), quiet=True,
                restrictions=recorded,
                strategy=strategy, strategy_options={"max_fevals": len(space)}, simulation_mode=True,
            )  # fmt: skip
            signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    return [key for key in seen if key in allowed]


def _cache(space: Sequence[Mapping[str, int]], times: Sequence[float], parameters: Mapping[str, list[int]]) -> dict[str, Any]:
    """The file from which Kernel Tuner simulates."""
    besides = dict.fromkeys(("compile_time", "verification_time", "strategy_time", "framework_time"), 0.0)
    when = "2026-01-01 00:00:00+00:00"
    results = {
        _key(row): {**row, "time": time, "times": [time], "benchmark_time": time, **besides, "timestamp": when}
        for row, time in zip(space, times, strict=True)
    }
    return {
        "device_name": "recorded", "kernel_name": "recorded", "problem_size": 1, "tune_params_keys": list(parameters),
        "tune_params": parameters, "objective": "time", "cache": results,
    }  # fmt: skip
