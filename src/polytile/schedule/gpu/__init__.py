"""How a GPU goes through loops.

Enters: a LoopKernel, the nest of its axes, and the facts of a device. Leaves: the schedules that are legal for it (legality.py)
and worth trying (space.py) as points of one space (schedule.py), each shown with its code before and after (catalogue.py); the
launches that a schedule makes of the loop (scheduled.py); how rows are added up by an index (segments.py). Called by codegen,
cost, candidates and dispatch.
"""
