"""Learned selection: models trained on measurements that predict which candidate is fastest.

Enters: Records of a store with the terms of their predictions, and, at a choice, a Problem and its Offers. Leaves: Models (JSON,
and the same trees as Python), and their choices, or that they are unsure. Called by the selector's link for models, which asks
the installed ones, and by `polytile learn`; knows problem, runtime, store and tuning. Only training needs scikit-learn.
"""
