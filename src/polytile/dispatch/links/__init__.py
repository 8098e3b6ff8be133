"""The links of the selector chain, one a file; `selector.chain` has their order.

Enters: a Request, to each link's `choose`. Leaves: an Answer; one without a candidate, which says why not; or None. Called by the
selector alone, except `forced.check`, `plan.subdivides` and `plan.exact_sizes`, which a MultiKernel asks beforehand, and what
refining asks of sizes that come often: `measured.measure_again`, and which candidates to try there.
"""
