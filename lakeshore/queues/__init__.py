"""Queues: the surface people use over a plane."""
