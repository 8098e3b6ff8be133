"""Finds attention in a graph and keeps it whole.

Enters: Dynamo's graph, then AOTAutograd's ATen graph. Leaves: nodes of polytile::attention in place of calls of
scaled_dot_product_attention (whole.py) and of decomposed attention (patterns.py). Called by the backend.
"""
