"""What a hostile job puts out: all ways we know to run something, fetch something or leave the box."""

import time

evil = "</div></style></script><script>window.owned = 1</script><img src=x onerror='window.owned = 2'>"
html = (
    evil + "<style>.jp-Cell{display:none}</style><a href='javascript:owned()'>x</a>"
    "<div style='position:fixed;inset:0;background:red;z-index:9999'>cover</div>"
    "<div style='background:url(http://evil.example/a)' class='jp-Cell lk-record' id=main>b</div>"
    "<img src='http://evil.example/b.png' srcset='http://evil.example/c.png 2x'>"
    "<link rel=stylesheet href=//evil.example/d>"
    "<svg onload='window.owned=3'><script>window.owned=4</script></svg>"
    "<math><mtext><img src=x onerror='window.owned=5'></math>"
    "<iframe srcdoc='<script>parent.owned=6</script>'></iframe>"
    "<form action=//evil.example><input autofocus onfocus='window.owned=7'></form>"
    "<table width=99999 height=99999><tr><td>" + "w" * 5000 + "</td></tr></table>"
    "<meta http-equiv=refresh content='0;url=//evil.example'>"
    "<details open ontoggle='window.owned=8'>d</details><video src=//evil.example/e autoplay></video>"
    "<button onclick='window.owned=12'>Cancel</button>$$\\href{javascript:window.owned=13}{x}$$"
    + "<div>"
    * 3000
)
svg = (
    "<svg xmlns='http://www.w3.org/2000/svg' width='99999' height='99999' onload='window.owned=9'>"
    "<script>window.owned=10</script><image href='http://evil.example/f.png' width='9' height='9'/>"
    "<foreignObject><body xmlns='http://www.w3.org/1999/xhtml' onload='window.owned=11'/>"
    "</foreignObject></svg>"
)
ansi = "".join(f"\x1b[{n % 300}m\x1b[{n}C{chr(97 + n % 26)}" for n in range(4000))
ansi += "\x1b[2J\x1b[99999;99999H\x1b]0;t\x07\x1b]8;;http://evil.example\x07l\x1b]8;;\x07"
values = [evil, {evil: evil}, {evil: 1.0}, [evil], "\u202e" + evil, "x" * 1_000_000]
values += [{"\u202e": 1.0, "style": "}</style>" + evil}, "\u0301" * 3000, "\u202e\u2066" * 50]
logs = [
    evil,
    ansi,
    "\x00\x01\x08\x7f\x9b31m\u202egnp.\u2066\u200b",
    "\\3c script>\\00003c\r\r\rover",
    "y" * 1_000_000,
]
displays = [
    {"text/html": html},
    {"image/svg+xml": svg},
    {"text/html": "<base href=//evil.example>" + html},
    {"image/png": "A" * 400, "text/plain": evil},
]


def show_hostile(plane, wire, id, show_job, work):
    """Show a job whose log, displays and values are all of these."""
    for text in logs:
        plane.journal_extend(f"{id}.log", wire.value_frames({"stream": "stdout", "text": text}))
    panel = show_job(plane, id, name=evil)

    def show():
        for data in displays:
            plane.journal_extend(f"{id}.log", wire.value_frames({"display": data}))
            time.sleep(0.6)
        work(values, 0.1, line=None)

    return panel, show
