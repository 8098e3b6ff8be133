"""Learned choice: models, trained on measurements, of which candidate is fastest.

Enters: Records of a store with the terms of their predictions, and, at a choice, a Problem and its Offers. Leaves: Models
(JSON, and the same trees as Python), and what they choose, or that they are unsure. Called by the selector's link for
models, which asks those that are installed, and by `polytile learn`; knows problem, runtime, store and tuning. Only training
needs scikit-learn.
"""
