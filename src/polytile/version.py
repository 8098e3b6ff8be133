"""The version of polytile: part of plans, reports and the records of measurements."""

__version__ = "0.1.0"
