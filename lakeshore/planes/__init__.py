"""Dispatch planes: where invocation rows and frame journals live."""
