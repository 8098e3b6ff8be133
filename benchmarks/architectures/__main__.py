"""Runs the table of models as `benchmarks.programs` runs its own."""

from __future__ import annotations

from benchmarks.programs.__main__ import main

if __name__ == "__main__":
    main("architectures", "benchmarks.architectures.models:MODELS")
