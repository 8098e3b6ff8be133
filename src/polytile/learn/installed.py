"""The models in use: those shipped with the package, and the user's, which replace them for the same family and architecture.

The package's are in `models/` beside this file, the user's in `models/` of the cache directory, where `polytile learn train`
writes them. A model that cannot be read, or that did not beat the prediction in its test, is logged once and skipped.
"""

from __future__ import annotations

import functools
import logging
from pathlib import Path

from polytile import options
from polytile.learn.model import ModelError, Trained, load
from polytile.runtime import cache

log = logging.getLogger("polytile")

SHIPPED = Path(__file__).with_name("models")


def users() -> Path:
    """The folder of the user's models."""
    return _users_of(options.cache_dir())


@functools.cache
def _users_of(directory: Path) -> Path:
    return cache.within(directory) / "models"


def models() -> tuple[Trained, ...]:
    """The models in use, one per family and architecture; none if option `learned` is off."""
    if not options.get("learned"):
        return ()
    by_problem: dict[tuple[str, str], Trained] = {}
    for folder in (users(), SHIPPED):
        for model in usable(folder):
            by_problem.setdefault((model.family, model.architecture), model)
    return tuple(by_problem.values())


@functools.cache
def usable(folder: Path) -> tuple[Trained, ...]:
    """The usable models in a folder, as of the first call."""
    trained = []
    for path in sorted(folder.glob("*.json")) if folder.is_dir() else ():
        try:
            trained.append(checked(path))
        except ModelError as error:
            log.warning("A learned model is not used: %s", error)
    return tuple(trained)


def checked(path: Path) -> Trained:
    """The model in a file. Raises ModelError also for one that is not to be used."""
    model = load(path)
    if why := model.why_unused():
        raise ModelError(f"the model {path} is not better than the prediction: {why}. Train it on more measurements.")
    return model
