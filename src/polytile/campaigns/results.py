"""The results of a campaign: a table of choices, a plan that pins them, and learned models.

The table is JSON with one line per kernel and sizes: where times were taken, the times, and the grounds of the choice. Its digest
is that of the lines. It is signed by `ssh-keygen -Y sign` with a key of the user's, so that others can check with `ssh-keygen -Y
verify`, in the namespace NAMESPACE, who made it and that it is unchanged.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from polytile import files, store
from polytile.campaigns.trace import Traced
from polytile.compiler import backend
from polytile.dispatch.decision import Decision
from polytile.dispatch.multikernel import MultiKernel
from polytile.dispatch.planfile import Pinned, Plan, here, pinned_by
from polytile.dispatch.registry import alive
from polytile.errors import CampaignError, NoCandidate
from polytile.facts import texts
from polytile.learn import model as models
from polytile.learn.examples import examples
from polytile.learn.train import TrainingError, train
from polytile.problem import digest
from polytile.store.place import Place
from polytile.store.reading import records

FORMAT, VERSION = "polytile table", 1
NAMESPACE = "polytile"

MEASURED = ("exact",)
"""Links whose choices rest on measurements at exactly these sizes."""


@dataclass(frozen=True)
class Choice:
    """A line of the table: what runs a kernel at some sizes, and why.

    `seconds` is None if it was not measured; `library` is the time of the library's fastest candidate; `calls` is how often these
    sizes occurred.
    """

    kernel: str
    digest: str
    dtypes: tuple[str, ...]
    layouts: tuple[str, ...]
    device: str
    sizes: tuple[tuple[str, int], ...]
    candidate: str
    seconds: float | None
    library: float | None
    measured: int
    grounds: str
    calls: float

    def as_json(self) -> dict[str, Any]:
        return {**vars(self), "sizes": dict(self.sizes)}


def choices(traced: Traced) -> list[Choice]:
    """The decisions of `settle` at all sizes of the campaign."""
    chosen = []
    for kernel, wanted in traced.kernels.items():
        libraries = _libraries(kernel)
        for name, sizes in wanted.items():
            decision = _decision(kernel, sizes)
            if decision is not None:
                chosen.append(_choice(kernel, decision, libraries, traced.units[name].weight))
    for kernel in [*traced.inner, *_called(traced)]:
        libraries = _libraries(kernel)
        chosen += [_choice(kernel, decision, libraries, 1.0) for decision in kernel.decisions]
    return sorted(chosen, key=lambda choice: (choice.kernel, choice.sizes, choice.digest))


def _libraries(kernel: MultiKernel) -> set[str]:
    return {candidate.name for candidate in kernel.candidates if candidate.origin == "library"}


def _choice(kernel: MultiKernel, decision: Decision, libraries: set[str], calls: float) -> Choice:
    timed = {
        s.candidate: s.seconds for s in decision.standings if s.seconds == s.seconds and 0 < s.seconds < float("inf")
    }
    spec, exact = kernel.spec, decision.link in MEASURED
    return Choice(
        spec.name, spec.kernel, spec.dtypes, tuple(texts(spec.layouts)), decision.problem.device, decision.problem.sizes,
        decision.candidate, timed.get(decision.candidate) if exact else None,
        min((timed[name] for name in libraries & set(timed)), default=None) if exact else None,
        len(timed) if exact else 0, decision.provenance, calls,
    )  # fmt: skip


def settle(traced: Traced) -> list[Pinned]:
    """Make every kernel decide at the campaign's sizes from the current store, without measuring; a plan pins these decisions."""
    store.current().refresh()
    for kernel in (*traced.kernels, *traced.inner):
        kernel.forget()
    for kernel, wanted in traced.kernels.items():
        for sizes in wanted.values():
            _settle(kernel, sizes, traced)
    with torch.no_grad():
        for function, args in traced.calls.values():
            backend.compile(function)(*args)
    kernels = [*traced.kernels, *traced.inner, *_called(traced)]
    return list({pinned.key: pinned for kernel in kernels for pinned in pinned_by(kernel)}.values())


def _called(traced: Traced) -> list[MultiKernel]:
    """Kernels that ran in the campaign's calls but that no model needs."""
    known = {*traced.kernels, *traced.inner}
    return [kernel for kernel in alive() if kernel not in known and kernel.decisions] if traced.calls else []


def _settle(kernel: MultiKernel, sizes: Mapping[str, int], traced: Traced) -> None:
    """Decide at these sizes, also in the kernels that the chosen candidate runs.

    A regime accepts a record that covers everything that would be measured. If a busy machine had no time for that, these sizes
    get a decision of their own from the measurements that exist.
    """
    own = tuple(sizes[name] for name in kernel.spec.size_names)
    with contextlib.suppress(NoCandidate):
        kernel.warm([sizes])
        decision = _decision(kernel, sizes)
        if decision is not None and decision.link not in MEASURED:
            kernel.add_exact_size(kernel.keys.unpack(kernel.planned_key(own)), sizes)
            kernel.warm([sizes])
    for inner, ints, _ in kernel.inner_calls(own):
        if inner not in traced.kernels:
            traced.inner[inner] = None
        _settle(inner, inner.spec.sizes(ints), traced)


def _decision(kernel: MultiKernel, sizes: Mapping[str, int]) -> Decision | None:
    return kernel.decision_at(*(sizes[name] for name in kernel.spec.size_names))


def write_plan(pinned: Iterable[Pinned], path: Path) -> int:
    """Write the plan; returns its number of decisions. Raises PlanError."""
    plan = Plan(tuple(pinned), here())
    plan.write(path)
    return len(plan.decisions)


def table_text(found: Iterable[Choice], campaign: str) -> str:
    """The table as text: one choice per line, preceded by the digest of all of them."""
    lines = ",\n".join(json.dumps(choice.as_json(), sort_keys=True) for choice in found)
    head = {
        "format": FORMAT,
        "version": VERSION,
        "campaign": campaign,
        "environment": here(),
        "digest": digest(lines, 64),
    }
    return f'{json.dumps(head, sort_keys=True)[:-1]},\n"choices": [\n{lines}\n]}}\n'


def write_table(text: str, path: Path, key: Path | None) -> Path | None:
    """Write the table, and a signature by an SSH key beside it; returns the signature's path, if there is one. Raises
    CampaignError."""
    signature = path.with_name(f"{path.name}.sig")
    try:
        files.write_text(path, text)
        signature.unlink(missing_ok=True)  # the signature of an earlier table
        if key is None:
            return None
        words = ["ssh-keygen", "-Y", "sign", "-n", NAMESPACE, "-f", str(key), str(path)]
        done = subprocess.run(words, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    except OSError as error:
        raise CampaignError(f"the table cannot be written to {path} and signed: {error.strerror or error}.") from None
    if done.returncode != 0:
        raise CampaignError(f"the table {path} cannot be signed with {key}: {done.stderr.strip()}.")
    return signature


def verify(path: Path) -> dict[str, Any]:
    """The table in a file. Raises CampaignError if its lines do not match the digest."""
    try:
        text = path.read_text()
        content: dict[str, Any] = json.loads(text)
        lines = text.partition('"choices": [\n')[2].removesuffix("\n]}\n")
        if content["format"] != FORMAT:
            raise ValueError
    except (OSError, ValueError, KeyError, TypeError):
        raise CampaignError(f"{path} is no table of a campaign.") from None
    if digest(lines, 64) != content["digest"]:
        raise CampaignError(f"{path} was changed since it was made: its choices are not those that its digest is of.")
    return content


def learn(measured: Place, folder: Path, tell: Callable[[str], None]) -> tuple[list[models.Trained], list[str]]:
    """Train a model for each family with enough measurements, and keep it in the folder. Returns them, and why there are no
    others."""
    made, lacking = list[models.Trained](), list[str]()
    learnable = examples(records(measured))
    if not learnable.examples:
        lacking.append(
            f"No model: of {learnable.alone + learnable.without_terms} problems none has two candidates that ran while nothing "
            "else had the cores."
        )
    for (family, architecture), chosen in learnable.families().items():
        try:
            trained = train(chosen)
        except TrainingError as error:
            lacking.append(f"No model of {family} on {architecture}: {error}")
            continue
        folder.mkdir(parents=True, exist_ok=True)
        models.save(trained, folder / trained.file_name)
        tell(f"model of {family} on {architecture}: {folder / trained.file_name}")
        made.append(trained)
    return made, lacking
