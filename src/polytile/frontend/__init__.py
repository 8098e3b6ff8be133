"""From a Dynamo graph to IR.

Enters: an FX graph of ATen operators with fake tensors in `node.meta["val"]`. Leaves: a `polytile.ir.program.Program`, and the
`torch.compile` backend itself (`frontend.backend`). Called by torch.compile and by `polytile.compile`; calls every room below.
"""
