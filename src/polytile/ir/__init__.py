"""The intermediate representation: programs of loops, templates and library calls over buffers with symbolic sizes.

Enters: nothing but torch dtypes and sympy sizes. Leaves: frozen values (`Program`, `Loop`, `Template`, `Extern`, expression
nodes), their printed text, the verifier, and what they compute by torch's operators. Every room above may call it; it calls none.
"""
