"""Campaigns: many problems measured by many processes, on one machine or several, up to one table.

Enters: a spec (spec.py), which names models, kernels and sizes. Leaves: measurements in a store, a signed table of choices, a
plan, and a learned model (results.py). A campaign is a folder (board.py) with a file for each unit of work; whoever can write to
the folder may work on it (worker.py). Called by the commands; may import the compiler, and what is below it.
"""
