"""The links of the selector chain, one per file; `selector.chain` has their order.

The selector calls the `choose` of each link with a Request. It returns an Answer (without a candidate if the link abstains with
a reason) or None. Others call only `forced.check`, `plan.subdivides` and `plan.exact_sizes`, which a MultiKernel asks
beforehand, and `measured.measure_again` with its choice of candidates, which refining asks for frequent sizes.
"""
