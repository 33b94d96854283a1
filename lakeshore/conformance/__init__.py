"""The dispatch contract, executable: one function a rule, run against any plane, without pytest."""

from lakeshore.conformance.run import Outcome, check, rules

__all__ = ["Outcome", "check", "rules"]
