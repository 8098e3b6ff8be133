"""Campaigns: measuring many problems with many processes, on one or several machines, into one table.

Enters: a spec (spec.py), which names models, kernels and sizes. Leaves: measurements in a store, a signed table of choices, a
plan, and learned models (results.py). A campaign is a folder (board.py) with a file for each unit of work; whoever can write to
the folder can work on it (worker.py). Called by the commands; may import the compiler and the rooms below it.
"""
