"""Loop schedules for a GPU.

In: a LoopKernel, the nest of its axes, and the facts of a device. Out: the schedules that are legal (legality.py) and
worth trying (space.py) as points of one space (schedule.py), each documented with code before and after (catalogue.py);
the launches of a scheduled loop (scheduled.py); and the ways to add up rows by an index (segments.py). Called by
codegen, cost, candidates and dispatch.
"""
