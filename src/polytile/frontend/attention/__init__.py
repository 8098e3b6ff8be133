"""Attention found in a graph and kept whole.

Enters: Dynamo's graph, then AOTAutograd's ATen graph. Leaves: nodes of the operator polytile::attention in place of calls of
scaled_dot_product_attention (whole.py) and of what writes attention out (patterns.py). Called by the backend.
"""
