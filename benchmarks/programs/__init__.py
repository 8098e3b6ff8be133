"""`python -m benchmarks.programs`: small programs of every family of operators, on either device, against eager and the peer.

`operators.py`, `rarer.py`, `chains.py` and `networks.py` are the tables. Each contestant of each program has a process and caches
of its own (`contestant.py`), in which it is judged against float64 eager (`judge.py`), its first call is divided into stages
(`stages.py`) and it is timed in turns with eager. Rows are written as they end; `report.py` makes the tables.
"""
