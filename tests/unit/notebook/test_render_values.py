"""Values and displays: what is shown of them, and that nothing of them can run, fetch or leave its box."""

from __future__ import annotations

import base64
import io
import time
import zlib
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakeshore.notebook.render_images import MAX_IMAGE_BYTES, dimensions
from lakeshore.notebook.render_numerals import number
from lakeshore.notebook.render_values import bundle_figure, clip, figure, is_rich, one_line, sanitise, show

SAFE_TAGS = {"p", "b", "table", "thead", "tbody", "tr", "td", "th", "div", "img", "span", "pre", "br"}


class Audit(HTMLParser):
    """Collects what a browser would act on."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))


def audit(html: str) -> None:
    """Fail when the HTML could run, fetch, link, style or name anything."""
    parser = Audit()
    parser.feed(html)
    for tag, attributes in parser.seen:
        assert tag not in {
            "script",
            "style",
            "iframe",
            "object",
            "embed",
            "link",
            "meta",
            "base",
            "form",
            "a",
            "svg",
        }
        for name, value in attributes.items():
            assert not name.startswith("on"), (tag, name)
            assert name in {
                "src",
                "alt",
                "class",
                "title",
                "colspan",
                "rowspan",
                "scope",
                "open",
                "width",
                "height",
            }, (
                tag,
                name,
            )
            if name == "src":
                assert (value or "").startswith("data:image/"), value
            if name == "class":
                assert value in {"lk-html", "lk-mute"}


@pytest.mark.parametrize(
    "html",
    [
        "<script>alert(1)</script>",
        "<img src=x onerror=alert(1)>",
        "</div></div><div style='position:fixed;inset:0'>over all",
        "<svg onload=alert(1)><script>alert(1)</script></svg>",
        "<a href='javascript:alert(1)'>x</a><a href='https://evil.example'>y</a>",
        "<iframe srcdoc='<script>alert(1)</script>'></iframe>",
        "<style>*{display:none}</style><b id=notebook class=jp-Cell>x</b>",
        "<img src='https://evil.example/pixel.png'><img srcset='https://evil.example/p 2x'>",
        "<img src='data:image/svg+xml;base64,PHN2Zz4='><img src='data:text/html,x'>",
        "<form action=https://evil.example><input name=q><button>go</button></form>",
        "<math><mtext><table><mglyph><style><img src=x onerror=alert(1)>",
        "<noscript><p title='</noscript><img src=x onerror=alert(1)>'>",
        "<table background=https://evil.example><td colspan=99999999 onclick=x>1",
        "<b>" * 20_000,
        "<!--<img src=x onerror=alert(1)>--><b>x</b>",
        "<base href=https://evil.example><meta http-equiv=refresh content=0;url=https://evil.example>",
    ],
)
def test_hostile_html_is_inert(html: str) -> None:
    clean = sanitise(html)
    audit(clean)
    assert clean.count("</div>") == clean.count("<div")
    made = bundle_figure({"text/html": html})
    assert made is not None
    audit(made.html)


@given(st.text(alphabet="<>/='\" abdiosvgclrenpt:;-!&#x\n", max_size=120))
def test_any_html_is_inert(html: str) -> None:
    audit(sanitise(html))


def test_a_table_keeps_its_shape() -> None:
    import pandas as pd

    made = figure(pd.DataFrame({"a": [1, 2], "b<i>": ["<script>", "y"]}))
    assert made is not None
    audit(made.html)
    assert made.html.count("<tr") == 3
    assert "&lt;script&gt;" in made.html
    assert made.text == "DataFrame 2 × 2"


def png(width: int, height: int, body: bytes = b"") -> bytes:
    head = b"IHDR" + width.to_bytes(4, "big") + height.to_bytes(4, "big") + b"\x08\x02\x00\x00\x00"
    return b"\x89PNG\r\n\x1a\n" + (13).to_bytes(4, "big") + head + zlib.crc32(head).to_bytes(4, "big") + body


def test_images_are_size_checked() -> None:
    small = bundle_figure({"image/png": png(10, 10)})
    assert small is not None and ' width="10" height="10" ' in small.html, "it keeps its place from the start"
    wide = bundle_figure({"image/png": png(1800, 600)})
    assert wide is not None and ' width="900" height="300" ' in wide.html
    for sides, place in (
        ("width='6.5in'", ""),
        ("width='300pt' height='150pt'", ' width="400" height="200"'),
    ):
        drawing = bundle_figure({"image/svg+xml": f"<svg {sides} viewBox='0 0 9 9'/>"})
        assert drawing is not None and f'<img alt="display"{place} src=' in drawing.html
    audit(small.html)
    huge = bundle_figure({"image/png": png(100_000, 100_000)})
    assert huge is not None and "<img" not in huge.html and "over 25,000,000 pixels" in huge.text
    heavy = bundle_figure({"image/png": png(10, 10, b"x" * MAX_IMAGE_BYTES)})
    assert heavy is not None and "<img" not in heavy.html and "MiB" in heavy.text
    fake = bundle_figure({"image/png": b"<script>alert(1)</script>"})
    assert fake is not None and "<img" not in fake.html
    text = bundle_figure({"image/png": base64.b64encode(png(3, 4)).decode() + "\n"})
    assert text is not None and "<img" in text.html
    quoted = bundle_figure({"image/png": png(1, 1), "text/plain": '"><script>alert(1)</script>'})
    assert quoted is not None
    audit(quoted.html)


def test_every_raster_format_tells_its_size() -> None:
    from PIL import Image

    for kind in ("PNG", "JPEG", "GIF", "WEBP"):
        out = io.BytesIO()
        Image.new("RGB", (37, 21)).save(out, kind)
        assert dimensions(out.getvalue()) == (37, 21), kind
    out = io.BytesIO()
    Image.new("RGB", (37, 21)).save(out, "WEBP", lossless=True)
    assert dimensions(out.getvalue()) == (37, 21)


@given(st.binary(max_size=64))
def test_broken_images_are_no_error(data: bytes) -> None:
    for head in (b"", b"\xff\xd8", b"GIF89a", b"RIFFxxxxWEBPVP8X", b"\x89PNG\r\n\x1a\n1234IHDR"):
        dimensions(head + data)


def test_svg_comes_only_as_an_image() -> None:
    made = bundle_figure({"image/svg+xml": "<svg onload='alert(1)' xmlns='http://www.w3.org/2000/svg'/>"})
    assert made is not None and made.html.startswith("<img ")
    assert "onload" not in made.html
    bomb = bundle_figure({"image/svg+xml": "<!DOCTYPE svg [<!ENTITY a 'aa'>]><svg/>"})
    assert bomb is not None and "<img" not in bomb.html


def test_a_large_picture_is_shrunk_before_it_is_sent() -> None:
    from PIL import Image

    made = figure(Image.new("L", (3000, 1500)))
    assert made is not None
    data = base64.b64decode(made.html.partition("base64,")[2].partition('"')[0])
    assert dimensions(data) == (1024, 512)
    assert made.text == "Image L 3000 × 1500"


class Angry:
    """Everything about it raises."""

    def __repr__(self) -> str:
        raise RuntimeError("no")

    def _repr_html_(self) -> str:
        raise ValueError("<script>no</script>")

    @property
    def shape(self) -> Any:
        raise KeyError("no")


def test_a_value_that_raises_is_told_of() -> None:
    assert "Angry" in show(Angry()).text
    made = figure(Angry())
    assert made is not None and "ValueError" in made.text
    audit(made.html)


def test_text_numbers_and_structures() -> None:
    import numpy as np

    assert show("alpha-1").text == "alpha-1"
    assert show(None).text == "None"
    assert show(3).text == "3"
    assert show(3.14159265).text == "3.14159265"
    assert show(np.float32(0.5)).text == "0.5"
    assert show([1, {"a": (2, 3)}]).text == "[1, {'a': (2, 3)}]"
    assert show(b"x" * 5000).text == "bytes, 4.9 KiB"
    assert show(np.zeros((300, 200), "f4")).text == "ndarray float32 300 × 200"
    assert show(np.array([1, 2])).text == "array([1, 2])"
    assert show({"z": 1, "a": "x"}).fields == (("z", 1), ("a", "x"))
    assert show({"z": 1, "a": "x"}).text == "z=1  a=x"
    assert show({"a": [1]}).fields is None


def test_numbers_are_short_and_honest() -> None:
    cases = {
        0: "0",
        1 / 3: "0.3333",
        12.3456: "12.35",
        1234.56: "1234.6",
        1e-7: "1.000e-07",
        10**30: "1.0000e+30",
        4999999950000000: "4999999950000000",
        -(2**63): "-9223372036854775808",
        float("nan"): "nan",
        float("-inf"): "−inf",
        123456789012345: "123456789012345",
        -0.5: "-0.5",
    }
    for value, text in cases.items():
        assert number(value) == text
    assert number(10**5000) == "an int of 16,610 bits"


def test_cost_does_not_grow_with_the_value() -> None:
    big = {n: n for n in range(1_000_000)}
    began = time.perf_counter()
    for value in (big, [0] * 5_000_000, "x" * 20_000_000, set(range(500_000)), b"x" * 10_000_000):
        assert len(show(value).text) < 1_000
    assert time.perf_counter() - began < 1.5


def test_a_megabyte_line_is_clipped_and_counted() -> None:
    assert clip("x" * 1_000_000) == "x" * 600 + "… +999,400 characters"


@given(
    st.recursive(st.none() | st.floats() | st.integers() | st.text() | st.binary(), st.lists, max_leaves=20)
)
def test_every_value_has_one_line(value: Any) -> None:
    text = one_line(value)
    text.encode("utf-8", "surrogatepass")
    assert "\n" not in text


def test_plain_values_are_not_rich() -> None:
    assert not any(is_rich(value) for value in (None, 1, "x", [1], {"a": 1}, b""))
