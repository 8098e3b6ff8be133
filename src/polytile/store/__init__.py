"""Every measurement ever taken, append-only; decisions are derived from it and never stored.

Enters: Measurements (`append`), each with its Problem and environment. Leaves: Summaries of them, for one problem
exactly (`exact`) or for its relatives at other sizes (`nearby`), and whole Measurements for export and learning.
Callers: tuning, multikernel and the commands. Calls runtime for the cache directory, and only when a program asks for its
store; imports neither torch nor, where the store is a file, a database library (2 ms instead of 125). Trouble with the
place is logged and survived, never raised: a program runs without its memory, only slower the first time. For a person,
who wants to know, reading, transfer (with jsonl and kernel_tuner), check and cleanup work on a place from outside and
raise StoreError.

place: where a store is. schema: the tables and statements. database: what is done with them, on sqlite or postgres. index:
what a process has read of it. records: measurements as rows.
"""

from polytile.store.records import Summary, identity
from polytile.store.store import Store, current, forget
from polytile.store.summary import summarise

__all__ = ["Store", "Summary", "current", "forget", "identity", "summarise"]
