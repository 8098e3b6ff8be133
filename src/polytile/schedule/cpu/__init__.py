"""Loop schedules for a CPU.

In: a LoopKernel and the nest of its axes. Out: the legal schedules (space.py) as points of one space (schedule.py),
each documented with code before and after (catalogue.py); and the scheduled loop (scheduled.py): which values are
cached, which accesses are transposed, which stores are streamed or may collide. Called by codegen, cost and candidates.
"""
