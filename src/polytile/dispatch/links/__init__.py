"""The links of the selector chain, one a file; `selector.chain` has their order.

Enters: a Request, to each link's `choose`. Leaves: an Answer; one without a candidate, which says why not; or None. Called by the
selector alone, but for `forced.check`, `plan.splits` and `plan.taken_out`, which a MultiKernel asks beforehand, and for what
refining asks of sizes that come often: `measured.again`, and which candidates to try there.
"""
