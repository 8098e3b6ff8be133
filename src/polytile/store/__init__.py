"""Every measurement ever taken, append-only; decisions are derived from it and never stored.

Enters: Measurements (`append`), each with its Problem and environment. Leaves: Summaries of them, for one problem
exactly (`exact`) or for its relatives at other sizes (`nearby`), and whole Measurements for export and learning.
Callers: tuning, multikernel, learn, the commands. Calls nobody; needs neither torch nor SQLAlchemy to be imported (2
ms instead of 120). Trouble with the file is logged and survived, never raised: a program runs without its memory,
only slower the first time. For a person, who wants to be told, reading, transfer (with jsonl and kernel_tuner), check and
cleanup work on a file from outside and raise StoreError.
"""

from polytile.store.records import Summary, identity
from polytile.store.store import Store, current, forget
from polytile.store.summary import low_quantile, summarise

__all__ = ["Store", "Summary", "current", "forget", "identity", "low_quantile", "summarise"]
