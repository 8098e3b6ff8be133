"""The links of the selector chain, one a file, each with `choose(request) -> Answer | None`; `selector.chain` has the
order."""
