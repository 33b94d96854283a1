"""The stylesheet of panels and records: one calm look, light or dark by the front end's own variables.

Every colour is a ``--jp-*`` or ``--vscode-*`` variable with a fall-back, or of a luminance that reads on
white and on black alike (about 4.5 : 1 on both). Nothing depends on colour alone, and nothing that has to be
understood on this sheet: it is the first thing that a viewer of foreign notebooks takes away.
"""

from __future__ import annotations

from typing import Final

DIM: Final = "#767676"
BLANK: Final = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAQAAAC1HAwCAAAAC0lEQVR42mNgYAAAAAMAASsJTYQAAAAASUVORK5CYII="
"""One clear point as PNG: what is left of a stand-in, since an output cannot be taken away.

Nothing at all makes nbconvert warn, and an empty text is an output more to those who compare outputs.
"""
STATE_COLOURS: Final = {
    "queued": "#94700a",
    "running": "#3b74d8",
    "succeeded": "#23863a",
    "failed": "#d13a40",
    "cancelled": DIM,
}
"""Of the dot before a state's word; inline, so that it outlives the stylesheet."""

_RULES: Final = """
.lakeshore-panel{--lk-fg:var(--jp-content-font-color1,var(--vscode-foreground,CanvasText));
--lk-bg:var(--jp-layout-color0,var(--vscode-editor-background,Canvas));--lk-line:rgba(128,128,128,.28);
--lk-accent:#3b74d8;color:var(--lk-fg);background:var(--lk-bg);text-align:left;
font:13px/1.5 var(--jp-ui-font-family,system-ui,sans-serif);font-variant-numeric:tabular-nums;
box-sizing:border-box;max-width:100%;overflow-wrap:anywhere;contain:content}
.lakeshore-panel *{box-sizing:border-box}
.lk-record{border:1px solid var(--lk-line);border-radius:6px;padding:8px 12px;margin:2px 0}
.lk-live{contain:none}
.lk-live .lk-top{position:sticky;top:0;background:var(--lk-bg);z-index:1;padding-bottom:6px}
.lk-live .lk-top:not(:last-child){border-bottom:1px solid var(--lk-line)}
.lk-live .lk-body{border-top:0;margin-top:0}
.lk-state{white-space:nowrap}
.lk-state b,.lk-name,.lk-res b{font-weight:600}
.lk-mute{opacity:.72}
.lk-id,.lakeshore-panel :is(pre,code){
font-family:var(--jp-code-font-family,ui-monospace,monospace);font-size:12px}
.lakeshore-panel code{background:rgba(128,128,128,.14)!important;padding:1px 4px!important;border-radius:3px}
.lakeshore-panel .lk-id{user-select:all;opacity:.72;background:none!important;padding:0!important;border:0;
color:inherit;white-space:normal}
.lakeshore-panel td .lk-state b{font-weight:400}
.lakeshore-panel td .lk-id{white-space:nowrap}
.lakeshore-panel p{margin:4px 0}
.lk-bar{height:4px;border-radius:2px;background:var(--lk-line);overflow:hidden;margin:5px 0 3px}
.lk-bar>i{display:block;height:100%;border-radius:2px;background:var(--lk-accent)}
.lk-bar>i.lk-any{width:25%;opacity:.6;animation:lk-slide 2s linear infinite}
@keyframes lk-slide{from{transform:translateX(-100%)}to{transform:translateX(400%)}}
@media (prefers-reduced-motion:reduce){.lk-bar>i.lk-any{animation:none;width:100%;opacity:.3}}
.lk-nums{display:flex;flex-wrap:wrap;gap:0 18px;line-height:1.7}
.lk-num{white-space:nowrap}
.lk-sep{display:none}
.lk-num b{font-weight:600}
.lk-res{margin-top:4px}
.lk-body{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,22em),1fr));
gap:6px 20px;align-items:start;
border-top:1px solid var(--lk-line);margin-top:6px;padding-top:6px}
.lk-body>div{min-width:0}
.lakeshore-panel pre{margin:0;padding:0;line-height:1.45;white-space:pre-wrap;word-break:normal;
overflow-wrap:anywhere;background:none;border:0;
color:inherit;overflow:hidden;unicode-bidi:isolate}
.lk-scroll{overflow-x:auto}
.lakeshore-panel table{border-collapse:collapse;margin:0;font-size:12px;border:0}
.lakeshore-panel :is(td,th){padding:1px 14px 1px 0;text-align:right;border:0;line-height:1.4;background:none;
color:inherit;vertical-align:top;max-width:32em;white-space:nowrap;overflow:hidden;text-overflow:ellipsis}
.lakeshore-panel th{font-weight:400;opacity:.72}
.lakeshore-panel :is(tr,thead,tbody){background:none!important;border:0!important}
.lakeshore-panel .lk-jobs td:last-child{max-width:none;min-width:12em;white-space:normal}
.lk-fig{margin-top:6px}
.lk-fig img,.lk-html img{max-width:100%;height:auto;background:#fff;border-radius:3px}
.lk-html{overflow:auto;max-height:360px;contain:content}
.lakeshore-panel pre b{font-weight:600}
.lakeshore-panel summary{cursor:pointer}
"""


def _minify(css: str) -> str:
    return css.strip().replace("\n", "")


STYLE: Final = (
    _minify(_RULES) + f".jp-OutputArea-child:has(>.jp-RenderedImage>img[src$='{BLANK}']){{display:none}}"
)
"""The whole stylesheet as one line; safe to stand in a ``<style>`` element more than once."""


PANEL: Final = "lakeshore-panel mathjax_ignore tex2jax_ignore"
"""The classes of every panel: a job's ``$`` is a dollar and no formula, which the front end would set."""


def stand_in_html(record: str, key: str) -> str:
    """Return a record that `hiding` hides where the view is alive.

    In JupyterLab and Notebook 7 it hides the output before it while that has no view, and so is nothing but a
    message that its model is missing.
    """
    child = ".jp-OutputArea-child"
    css = f"{child}:not(:has(.lakeshore-view)):has(+{child} .lk-s-{key}){{display:none}}"
    return f'<style>{css}</style><div class="lk-s-{key}">{record}</div>'


def hiding(key: str) -> str:
    """Return the rules by which a view hides its stand-in; they go when the view goes."""
    return f".lk-s-{key},.jp-OutputArea-child:has(>*>.lk-s-{key}){{display:none}}"
