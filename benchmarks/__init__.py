"""Measurements of polytile, run from the repository's root as `python -m benchmarks.NAME`."""
