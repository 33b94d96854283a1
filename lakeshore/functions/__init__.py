"""Functions: how one crosses to a worker, how its body is driven, and what a user decorates.

A function travels by reference or by value (`transport`), as one call (`thunk`); its body is one
of four kinds and `body` drives them all; `udf` is the decorator over both.
"""
