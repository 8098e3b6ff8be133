"""From a piece of work and a Config to source text, and to the Candidates that a MultiKernel chooses from.

Enters: an IR Loop or Template (made canonical: equal work has equal text) and a Config. Leaves: `Candidate` objects with
source, validity, analytical cost and, once compiled, an `Entry`. Called by multikernel and tuning; knows ir and runtime.
"""
