"""The version of bertaccum."""

__version__ = "0.1.0"
