"""`python -m benchmarks.architectures`: models of the transformers library, small, with random, perturbed weights.

A sweep for correctness: each is run and judged as the programs of `benchmarks.programs` are, and `--contestants`, `--only`,
`--seconds`, `--show` and the rest mean the same. No weights are downloaded.
"""
