"""Which configs to try, by device family: tables as data (tables/*.json) and the heuristics that fit them to a problem.

In: a family's name, a table's name, the sizes at hand. Out: frozen config records, and for each row that was left out why.
Anything that makes candidates may call; `register` and `override` are for packages outside of polytile.
"""

from polytile.matmul.configs.heuristic import Heuristic, Request, Verdict
from polytile.matmul.configs.registry import families, heuristic, heuristic_of, override, register, unregister

__all__ = ["Heuristic", "Request", "Verdict", "families", "heuristic", "heuristic_of", "override", "register", "unregister"]
