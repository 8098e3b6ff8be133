"""The intermediate representation: programs of loops, templates and library calls over buffers with symbolic sizes.

Enters: torch dtypes and sympy sizes. Leaves: frozen values (`Program`, `Loop`, `Template`, `Extern`, expression nodes), their
printed text, the verifier, and an evaluator that runs them with torch operators. Every room above may call this one; it calls
none.
"""
