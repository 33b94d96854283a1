"""The views of lakeshore's panels: traits in, gestures out. Imports ipywidgets and never lakeshore."""

from lakeshore_widgets.stream import StreamView

__all__ = ["StreamView"]
