"""The version, here alone: the build reads it, workers report it, peers name it."""

__version__ = "0.1.0"
