"""A process that checks entries: reads names, one a line, and answers each with a report as a line of JSON.

A crash or a hang of an entry ends this process and no other; `tests.conformance.run` starts another one.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--samples", type=int, default=6)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # whatever else prints goes to stderr

    import torch

    torch.set_num_threads(arguments.threads)
    from tests.conformance.check import check
    from tests.conformance.entries import entries

    known = entries(arguments.device)
    for line in sys.stdin:
        report = check(known[line.strip()], arguments.device, arguments.samples, tune="off")
        answers.write(json.dumps(dataclasses.asdict(report)) + "\n")
        answers.flush()


if __name__ == "__main__":
    main()
