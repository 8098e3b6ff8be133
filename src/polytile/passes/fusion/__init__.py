"""Making fewer, larger loops: producer into consumer, siblings side by side, pointwise work into matmul epilogues.

Enters and leaves: a Program. `axes.py` brings two loops into one domain, `merge.py` says whether two loops may become
one and builds it, `graph.py` keeps the dependencies, `greedy.py` picks the best pair first. Called by
`passes.pipeline` alone.
"""
