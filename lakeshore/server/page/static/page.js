// The page's life: the token of this tab, the view kept fresh, one job's streams. Texts go in as text, never as HTML;
// the only HTML set here is what this server rendered.

import { Ext, Large, Short, read, tell, whole } from "./msgpack.js";

const EVERY = 2000, VALUES = 300, LOG = 200000, PICTURES = 20, KEY = "lakeshore-token";
const wants = document.documentElement.dataset.auth === "yes";
const main = document.getElementById("content"), said = document.getElementById("said");
const form = document.getElementById("enter"), field = document.getElementById("token");
const pause = document.getElementById("pause"), leave = document.getElementById("leave");
let token = sessionStorage.getItem(KEY), tag = null, paused = false, timer = null, asked = 0;

// -- asking ------------------------------------------------------------------------------------------------

function headers(more = {}) { return token ? { Authorization: `Bearer ${token}`, ...more } : more; }

async function problem(answer) {
  try { return (await answer.json()).error.message; } catch { return `the server answered ${answer.status}`; }
}

function say(text) { if (said.textContent !== text) said.textContent = text; }

async function show(fresh = false) {
  clearTimeout(timer);
  const mine = ++asked;
  if (wants && !token) { enter(""); return; }
  try {
    const known = !fresh && tag ? { "If-None-Match": tag } : {};
    const answer = await fetch("/page/view" + location.search, { headers: headers(known), cache: "no-store" });
    if (mine !== asked) return;
    if (answer.status === 401) { forget(); enter(await problem(answer)); return; }
    if (answer.ok) {
      const html = await answer.text();
      if (mine !== asked) return;
      tag = answer.headers.get("ETag");
      put(html);
      if (said.dataset.away) { delete said.dataset.away; say(""); }
    } else if (answer.status !== 304) {
      tag = null;
      stop();
      const told = document.createElement("p");
      told.className = "problem"; told.setAttribute("role", "alert"); told.textContent = await problem(answer);
      main.replaceChildren(told);
    } else if (said.dataset.away) { delete said.dataset.away; say(""); }
  } catch {
    if (mine !== asked) return;
    said.dataset.away = "yes"; say("The control plane does not answer. Trying again.");
  }
  form.hidden = true; pause.hidden = false; leave.hidden = !wants;
  if (!paused) timer = setTimeout(tick, EVERY);
}

function tick() {
  const chosen = getSelection();
  const busy = document.hidden || (chosen && !chosen.isCollapsed && main.contains(chosen.anchorNode))
    || (main.contains(document.activeElement) && ["INPUT", "SELECT"].includes(document.activeElement.tagName));
  if (busy) timer = setTimeout(tick, EVERY); else show();
}

// What changed comes in; the live part, the focus and the places scrolled to stay.
function put(html) {
  const focus = main.contains(document.activeElement) ? document.activeElement.id : "";
  const next = document.createElement("template");
  next.innerHTML = html;
  const live = main.querySelector("#live"), fresh = next.content.querySelector("#live");
  const keep = following && live && fresh && live.dataset.keep === fresh.dataset.keep;
  if (keep) {
    for (const node of [...main.childNodes]) if (node !== live) node.remove();
    live.before(...[...next.content.childNodes].filter((node) => node !== fresh));
  } else {
    stop();
    main.replaceChildren(next.content);
  }
  ages();
  const job = main.querySelector("article[data-job]");
  document.title = job ? `${job.querySelector("h1").textContent.trim().replace(/\s+/g, " ")} · lakeshore` : "lakeshore";
  if (job && !keep) follow(main.querySelector("#live"), job.dataset.ns, job.dataset.job);
  if (job && job.dataset.ended === "yes") result(main.querySelector("#live"), job.dataset.ns, job.dataset.job);
  if (focus) document.getElementById(focus)?.focus({ preventScroll: true });
}

function ages() {
  const now = Date.now();
  for (const each of document.querySelectorAll("time")) {
    const seconds = (now - Date.parse(each.dateTime)) / 1000, far = Math.abs(seconds);
    const text = far < 60 ? `${Math.round(far)} s` : far < 3600 ? `${Math.floor(far / 60)} min`
      : far < 86400 ? `${Math.floor(far / 3600)} h` : `${Math.floor(far / 86400)} d`;
    each.textContent = seconds >= -1 ? `${text} ago` : `in ${text}`;
  }
}
setInterval(ages, 1000);

// -- the token ---------------------------------------------------------------------------------------------

function enter(why) {
  stop(); main.replaceChildren(); say(why);
  form.hidden = false; pause.hidden = leave.hidden = true;
  field.value = ""; field.focus();
}
function forget() { token = null; tag = null; sessionStorage.removeItem(KEY); }
form.addEventListener("submit", (event) => {
  event.preventDefault();
  token = field.value.trim(); field.value = "";
  sessionStorage.setItem(KEY, token);
  say(""); show(true);
});
leave.addEventListener("click", () => { forget(); enter("The token is forgotten."); });

// -- going about -------------------------------------------------------------------------------------------

function go(address) { history.pushState(null, "", address); tag = null; say(""); scrollTo(0, 0); show(true).then(() => main.focus({ preventScroll: true })); }

document.addEventListener("click", (event) => {
  const link = event.target.closest("a[href^='/']");
  if (link && !link.classList.contains("skip") && !event.ctrlKey && !event.metaKey && !event.shiftKey && event.button === 0) {
    event.preventDefault(); go(link.getAttribute("href"));
  }
  const button = event.target.closest("button[data-do]");
  if (button) act(button);
});
main.addEventListener("submit", (event) => {
  event.preventDefault();
  const query = new URLSearchParams(new FormData(event.target));
  for (const [name, text] of [...query]) if (!text) query.delete(name);
  go("/?" + query);
});
main.addEventListener("change", (event) => {
  if (event.target.id === "ns") go("/?" + new URLSearchParams({ ns: event.target.value }));
});
addEventListener("popstate", () => { tag = null; show(true); });
document.addEventListener("visibilitychange", () => { if (!document.hidden && !paused && timer) { clearTimeout(timer); show(); } });
pause.addEventListener("click", () => {
  paused = !paused;
  pause.textContent = paused ? "Go on" : "Pause"; pause.setAttribute("aria-pressed", String(paused));
  if (paused) clearTimeout(timer); else show();
});

async function act(button) {
  if (button.dataset.ask && !confirm(button.dataset.ask)) return;
  const job = main.querySelector("article[data-job]").dataset;
  button.disabled = true;
  try {
    const path = `/v1/namespaces/${encodeURIComponent(job.ns)}/invocations/${encodeURIComponent(job.job)}/${button.dataset.do}`;
    const answer = await fetch(path, { method: "POST", headers: headers({ "Content-Type": "application/x-msgpack" }), body: new Uint8Array([0x80]) });
    if (!answer.ok) say(await problem(answer));
    else {
      const done = whole(new Uint8Array(await answer.arrayBuffer())).get("ok");
      say(done ? (button.dataset.do === "cancel" ? "Cancelled." : "Queued again.") : "It had changed meanwhile.");
    }
  } catch { say("The control plane does not answer."); }
  tag = null;
  show(true);
}

// -- one job's streams -------------------------------------------------------------------------------------

let following = null;
function stop() { following?.abort(); following = null; }

function make(tag, text = "", more = {}) {
  const node = document.createElement(tag);
  node.textContent = text;
  for (const [name, value] of Object.entries(more)) node.setAttribute(name, value);
  return node;
}

function follow(live, ns, id) {
  stop();
  following = new AbortController();
  const signal = following.signal;
  const bar = make("progress", "", { max: 1, "aria-label": "Progress", hidden: "" }), note = make("p", "", { class: "dim", hidden: "" });
  const values = make("ol", "", { class: "values", tabindex: "0", "aria-label": "Values", hidden: "" });
  const log = make("pre", "", { class: "log", tabindex: "0", "aria-label": "Log", hidden: "" });
  const pictures = make("div", "", { class: "pictures" });
  const title = make("h2", "Values", { hidden: "" }), logTitle = make("h2", "Log", { hidden: "" });
  live.replaceChildren(bar, note, title, values, logTitle, log, pictures);

  const shown = { values: [], restart: false, log: [], logLength: 0, logRestart: false, pictures: [], progress: null };
  let large = null, waiting = false, closed = "", open = "", cost = 0;
  // What came since the last picture on the screen goes in at once: a fast job costs the page no more than a slow one.
  const soon = () => { if (!waiting) { waiting = true; setTimeout(flush, Math.min(Math.max(100, 4 * cost), 2000)); } };
  const flush = () => {
    waiting = false;
    if (signal.aborted) return;
    const began = performance.now();
    paint();
    cost = performance.now() - began;                     // a slow machine, or a large log, is painted less often
  };
  const paint = () => {
    if (shown.restart) { values.replaceChildren(); shown.restart = false; }
    if (shown.values.length) {
      tailed(values, () => values.append(...shown.values.splice(0).slice(-VALUES).map((value) => make("li", tell(value)))));
      while (values.childElementCount > VALUES) values.firstChild.remove();
      title.hidden = values.hidden = false;
    }
    if (shown.logRestart) { closed = open = ""; log.textContent = ""; pictures.replaceChildren(); shown.logRestart = false; }
    if (shown.log.length) {
      const text = lines(open + shown.log.join("").slice(-2 * LOG)), last = text.lastIndexOf("\n") + 1;
      shown.log = []; shown.logLength = 0;
      closed = (closed + text.slice(0, last)).slice(-LOG); open = text.slice(last);
      logTitle.hidden = log.hidden = false;
      tailed(log, () => { log.textContent = closed + open; });
    }
    for (const each of shown.pictures.splice(0).slice(-PICTURES)) picture(pictures, each);
    if (shown.progress) {
      const [done, total, text] = shown.progress;
      bar.hidden = note.hidden = false;
      if (total > 0 && total < Infinity && done >= 0) { bar.max = total; bar.value = Math.min(done, total); } else bar.removeAttribute("value");
      note.textContent = (total > 0 ? `${tell(done)} of ${tell(total)}` : tell(done)) + (typeof text === "string" ? ` · ${text.slice(0, 200)}` : "");
      shown.progress = null;
    }
  };

  stream(ns, id, signal, ([kind, , body, meta]) => {
    const total = kind === 2 && meta instanceof Map && meta.get("total");
    if (total) { large = { total, got: 0 }; return; }
    if (kind === 2) { shown.values = []; shown.restart = true; large = null; soon(); return; }
    if (kind === 1 && large) {
      large.got += body.length;
      if (large.got < large.total) return;
      shown.values.push(new Large(large.total)); large = null;
    } else if (kind === 0) shown.values.push(body);
    else return;
    if (shown.values.length > 2 * VALUES) shown.values.splice(0, VALUES);
    soon();
  });

  stream(ns, `${id}.log`, signal, ([kind, , body, meta]) => {
    if (kind === 2 && !(meta instanceof Map && meta.get("total"))) { shown.log = []; shown.logLength = 0; shown.pictures = []; shown.logRestart = true; soon(); return; }
    if (kind !== 0 || !(body instanceof Map)) return;
    const display = body.get("display"), text = body.get("text");
    if (display instanceof Map) { shown.pictures.push(display); if (shown.pictures.length > PICTURES) shown.pictures.shift(); }
    if (typeof text === "string") {
      shown.log.push(text); shown.logLength += text.length;
      if (shown.logLength > 4 * LOG) { shown.log = [shown.log.join("").slice(-2 * LOG)]; shown.logLength = shown.log[0].length; }
    }
    soon();
  });

  stream(ns, `${id}.progress`, signal, ([kind, , body]) => {
    if (kind !== 0 || !(body instanceof Map)) return;
    shown.progress = [Number(body.get("done")), Number(body.get("total")), body.get("note")];
    soon();
  });
}

// Changes a list and stays at its end where it was.
function tailed(node, change) {
  const below = node.scrollHeight - node.scrollTop - node.clientHeight < 40;
  change();
  if (below) node.scrollTop = node.scrollHeight;
}

// A terminal's text as it would stand at the end: what a carriage return wrote over is gone, colours are left out.
function lines(text) {
  const plain = text.replace(/\x1b\[[0-9;?]*[ -\/]*[@-~]|\x1b\][^\x07\x1b]*(\x07|\x1b\\)?|\x1b./g, "").replace(/\r\n/g, "\n");
  const last = plain.lastIndexOf("\n") + 1;
  const kept = plain.slice(0, last).replace(/[^\n]*\r/g, "") + plain.slice(last).replace(/[^\n\r]*\r(?=[^\r])/g, "");
  const clean = kept.replace(/[\u0000-\u0008\u000b\u000c\u000e-\u001f\u007f-\u009f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]/g, "\ufffd");
  return clean.length > LOG ? clean.slice(-LOG) : clean;
}

function picture(place, shown) {
  const png = shown.get("image/png"), jpeg = shown.get("image/jpeg");
  const data = png || jpeg;
  if (data instanceof Uint8Array || typeof data === "string") {
    const base64 = typeof data === "string" ? data : btoa(Array.from(data, (byte) => String.fromCharCode(byte)).join(""));
    if (/^[A-Za-z0-9+\/=\s]+$/.test(base64)) {
      const alt = shown.get("text/plain");
      place.append(make("img", "", { alt: typeof alt === "string" ? alt.slice(0, 200) : "a figure of the job", src: `data:image/${png ? "png" : "jpeg"};base64,${base64}` }));
    }
  } else {
    const text = shown.get("text/plain") ?? shown.get("text/markdown");
    if (typeof text === "string") place.append(make("pre", text.slice(0, 20000)));
  }
  while (place.childElementCount > PICTURES) place.firstChild.remove();
}

// Every frame of a journal, each once; a line that breaks goes on from its cursor until the journal has ended.
async function stream(ns, journal, signal, take) {
  let since = -1, pausing = 200;
  while (!signal.aborted) {
    try {
      const path = `/v1/namespaces/${encodeURIComponent(ns)}/producer/invocations/${encodeURIComponent(journal)}/result/stream?since=${since}`;
      const answer = await fetch(path, { headers: headers({ Accept: "application/x-lakeshore-rows" }), signal, cache: "no-store" });
      if ([401, 403, 404].includes(answer.status)) return;
      if (answer.ok) {
        const finished = answer.headers.get("Lakeshore-Finished") === "1";
        const reader = answer.body.getReader();
        let held = new Uint8Array(65536), end = 0;          // what came and is no whole row yet
        for (;;) {
          const { value, done } = await reader.read();
          if (done) break;
          if (end + value.length > held.length) {
            const larger = new Uint8Array(Math.max(2 * held.length, end + value.length));
            larger.set(held.subarray(0, end)); held = larger;
          }
          held.set(value, end); end += value.length;
          let at = 0;
          while (at < end) {
            let got;
            try { got = read(held.subarray(0, end), at); } catch (error) { if (error instanceof Short) break; throw error; }
            at = got.at;
            if (!Array.isArray(got.value)) continue;
            since = Number(got.value[0]); pausing = 200;
            let frame = null;
            try { frame = whole(got.value[1].slice()); } catch (error) {
              if (error instanceof RangeError) frame = [0, 0, new Large(got.value[1].length), null];
            }
            if (Array.isArray(frame)) take(frame);
          }
          if (at) { held.copyWithin(0, at, end); end -= at; }
        }
        if (finished || ended()) return;
      }
    } catch { if (signal.aborted) return; }
    if (ended() && pausing > 2000) return;
    await new Promise((go) => setTimeout(go, pausing));
    pausing = Math.min(pausing * 2, 10000);
  }
}

function ended() { return main.querySelector("article[data-job]")?.dataset.ended === "yes"; }

// What a job returned, fetched once it has ended.
async function result(live, ns, id) {
  if (!live || live.dataset.result) return;
  live.dataset.result = "asked";
  try {
    const answer = await fetch(`/v1/namespaces/${encodeURIComponent(ns)}/invocations/${encodeURIComponent(id)}`, { headers: headers({ Accept: "application/x-msgpack" }) });
    if (!answer.ok) return;
    const row = whole(new Uint8Array(await answer.arrayBuffer())), packed = row.get("result");
    if (row.get("state") !== "succeeded" || !(packed instanceof Uint8Array)) return;
    const box = make("section", "", { "aria-label": "Result" });
    box.append(make("h2", "Result"), make("pre", tell(packed.length > 1048576 ? new Ext(0, packed) : whole(packed), 4000), { tabindex: "0" }));
    live.prepend(box);
  } catch { delete live.dataset.result; }
}

ages();
show(true);
