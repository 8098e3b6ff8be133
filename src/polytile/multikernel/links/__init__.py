"""The links of the selector chain, one a file; `selector.chain` has their order.

Enters: a Request, to each link's `choose`. Leaves: an Answer; one without a candidate, which says why not; or None. Called by the
selector alone, but for `forced.check` and `plan.splits`, which a MultiKernel asks beforehand.
"""
