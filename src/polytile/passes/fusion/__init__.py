"""Fuses operations into fewer, larger ones: producers into consumers, siblings side by side, pointwise work into matmul
epilogues.

Enters and leaves: a Program. `axes.py` maps two loops to one domain, `merge.py` decides whether two loops may be fused and builds
the result, `graph.py` keeps the dependencies, and `greedy.py` picks the best pair first. Only `passes.pipeline` calls this
package.
"""
