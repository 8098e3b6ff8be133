"""All measurements ever taken, append-only. Decisions are derived from them and never stored.

In: Measurements (`append`), each with its Problem and environment. Out: Summaries of them, for exactly one problem (`exact`) or
for its relatives at other sizes (`nearby`), and whole Measurements for export and learning. Callers: tuning, dispatch and the
commands. It asks runtime for the cache directory, and only when a program asks for its store. It imports neither torch nor, if
the store is a file, a database library (2 ms instead of 125). A problem with the place is logged and never raised: a program
runs without its store, only slower the first time. For people, who want to know, reading, transfer (with jsonl and
kernel_tuner), check and cleanup work on a place from outside and raise StoreError.

place: where a store is. schema: the tables and statements. database: what is done with them, on sqlite or postgres. index: what
a process has read of it. records: measurements as rows.
"""

from polytile.store.records import Summary, identity
from polytile.store.store import Store, current, forget
from polytile.store.summary import summarise

__all__ = ["Store", "Summary", "current", "forget", "identity", "summarise"]
