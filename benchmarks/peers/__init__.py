"""The parts of `local_tier.py`: a file a system, with the same verbs over each, and the stages that ask them.

`side.py` lists the verbs; an adapter knows its own system only, a stage none.
"""
