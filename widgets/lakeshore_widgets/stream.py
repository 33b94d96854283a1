"""One job's live panel: an HTML trait for all that changes, one for the newest figure, and four buttons.

Plain ipywidgets 7 or 8, no JavaScript of its own. The HTML stands in a box whose flow is
``column-reverse``: the browser then keeps the newest line in view, and the place of a reader who scrolled up.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ipywidgets

GESTURES = ("cancel", "requeue", "detach", "freeze")
"""What `StreamView.on_gesture` may report."""

_LABELS = {
    "cancel": ("Cancel", "Cancel the job"),
    "requeue": ("Run again", "Queue the job again from the start"),
    "detach": ("Detach", "Stop following; the job goes on"),
    "freeze": ("Freeze", "Keep this picture; the job goes on"),
}
_CSS = (
    ".lakeshore-view{border:1px solid rgba(128,128,128,.28);border-radius:6px;padding:8px 12px;"
    "color:var(--jp-content-font-color1,var(--vscode-foreground,CanvasText))}"
    ".lakeshore-view :is(.widget-html-content,.jupyter-widget-html-content){line-height:1.5;width:100%}"
    # As wide as the record that takes its place.
    ".jp-OutputArea-output .lakeshore-view{margin-right:20px!important}"
    ".lakeshore-scroll{overflow-anchor:none}"
    ".lakeshore-buttons button{height:24px;line-height:22px;font-size:12px;padding:0 10px;color:inherit;"
    "background:transparent;border:1px solid rgba(128,128,128,.4);border-radius:4px;box-shadow:none}"
    ".lakeshore-buttons button:hover:enabled{border-color:currentColor}"
    ".lakeshore-buttons button:focus-visible{outline:2px solid #3b74d8;outline-offset:1px}"
)


class StreamView(ipywidgets.VBox):  # type: ignore[misc]  # ipywidgets has no types
    """A panel for one job.

    Parameters
    ----------
    html : str
        The panel's content; trusted as it is, so whoever sets it has escaped it.
    css : str
        A stylesheet for `html` and `figure`, sent once.
    gestures : sequence of str
        Which buttons to show, of `GESTURES`.
    max_height : str
        CSS height at which the content begins to scroll.

    Attributes
    ----------
    html, figure : str
        Set them to change what is shown; each set is one message, and an equal value none.
    """

    def __init__(
        self, html: str = "", *, css: str = "", gestures: Sequence[str] = GESTURES, max_height: str = "420px"
    ) -> None:
        layout = ipywidgets.Layout
        whole = layout(width="auto", margin="0")
        self._style_sheet = ipywidgets.HTML(f"<style>{_CSS}{css}</style>", layout=layout(display="none"))
        self._content = ipywidgets.HTML(html, layout=layout(width="auto", margin="0", flex="0 0 auto"))
        self._figure = ipywidgets.HTML("", layout=whole)
        scroller = self._scroller = ipywidgets.Box(
            [self._content],
            layout=layout(
                display="flex",
                flex_flow="column-reverse",
                align_items="stretch",
                overflow="auto",
                max_height=max_height,
                margin="0",
            ),
        )
        # The content is new at each update: the browser's own anchoring would jump to what it finds instead.
        scroller.add_class("lakeshore-scroll")
        shared = layout(width="auto", margin="0 6px 0 0")
        style = ipywidgets.ButtonStyle()
        self._buttons = {
            gesture: ipywidgets.Button(description=label, tooltip=hint, layout=shared, style=style)
            for gesture, (label, hint) in _LABELS.items()
            if gesture in gestures
        }
        row = ipywidgets.HBox(
            list(self._buttons.values()), layout=layout(margin="6px 0 0", flex_flow="row wrap")
        )
        row.add_class("lakeshore-buttons")
        self._row = row
        super().__init__([self._style_sheet, scroller, self._figure, row], layout=layout(margin="2px 0"))
        self.add_class("lakeshore-view")

    @property
    def html(self) -> str:
        """The panel's content."""
        return str(self._content.value)

    @html.setter
    def html(self, value: str) -> None:
        self._content.value = value

    @property
    def figure(self) -> str:
        """The newest figure below the content; apart, since it is large and changes seldom."""
        return str(self._figure.value)

    @figure.setter
    def figure(self, value: str) -> None:
        self._figure.value = value

    def on_gesture(self, callback: Callable[[str], Any]) -> None:
        """Call ``callback(gesture)`` at each click, with one of `GESTURES`.

        It runs in whatever thread the front end's message is handled in.
        """
        for gesture, button in self._buttons.items():
            button.on_click(lambda _, gesture=gesture: callback(gesture))

    def label(self, gesture: str, text: str, *, enabled: bool = True) -> None:
        """Change a button's text, ``""`` for its own, or switch it off."""
        button, text = self._buttons[gesture], text or _LABELS[gesture][0]
        button.description = text
        button.disabled = not enabled

    def retire(self) -> None:
        """Take the buttons away: nothing can be asked of this view any more."""
        self._row.layout.display = "none"

    def close(self) -> None:
        """Close the view and all that it is made of; closing a widget leaves its layout and style."""
        parts = (self._style_sheet, self._scroller, self._content, self._figure, self._row)
        for widget in (*parts, *self._buttons.values(), self):
            for name in ("layout", "style"):
                model = getattr(widget, name, None)
                if model is not None:
                    model.close()
            if widget is not self:
                widget.close()
        super().close()
