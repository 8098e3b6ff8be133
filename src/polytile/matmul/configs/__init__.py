"""Which configs to try, by device family: tables as data (tables/*.json) and the heuristics that adapt them to a problem.

Enters: the names of a family and a table, and sizes. Leaves: frozen config records, and for each row left out the reason. Called
by whatever makes candidates; `register` and `override` are for packages outside of polytile.
"""

from polytile.matmul.configs.heuristic import Heuristic, Request, Verdict
from polytile.matmul.configs.registry import families, heuristic, heuristic_of, override, register, unregister

__all__ = ["Heuristic", "Request", "Verdict", "families", "heuristic", "heuristic_of", "override", "register", "unregister"]
