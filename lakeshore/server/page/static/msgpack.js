// Reads msgpack as the wire has it (docs: the wire), and says in text what a value is. Nothing here makes HTML.

const utf8 = new TextDecoder("utf-8", { fatal: false });

export class Short extends Error {}          // more bytes are needed

export class Ext {
  constructor(code, bytes) { this.code = code; this.bytes = bytes; }
}

// A value too large to be sent whole in one frame, of which only the size is told.
export class Large {
  constructor(bytes) { this.bytes = bytes; }
}

const MOST = 200000;                         // values of one frame: a byte may stand for one, and each costs memory

// One value at `at` of `bytes`: {value, at}. Maps come as arrays of pairs, since a key may be anything.
export function read(bytes, at = 0, depth = 0, budget = { left: MOST }) {
  if (--budget.left < 0) throw new RangeError("too many values");
  if (depth > 64) return { value: "…", at: bytes.length };
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const need = (n) => { if (at + n > bytes.length) throw new Short(); const from = at; at += n; return from; };
  const u8 = () => view.getUint8(need(1)), u16 = () => view.getUint16(need(2)), u32 = () => view.getUint32(need(4));
  const part = (n) => { const from = need(n); return bytes.subarray(from, from + n); };
  const text = (n) => utf8.decode(part(n));
  const items = (n) => {
    if (n > bytes.length - at) throw new Short();
    const list = [];
    for (let i = 0; i < n; i++) { const got = read(bytes, at, depth + 1, budget); list.push(got.value); at = got.at; }
    return list;
  };
  const pairs = (n) => { const flat = items(2 * n), all = []; for (let i = 0; i < n; i++) all.push([flat[2 * i], flat[2 * i + 1]]); return new Map(all); };
  const ext = (n) => { const code = view.getInt8(need(1)); return new Ext(code, part(n)); };
  const kind = u8();
  let value;
  if (kind < 0x80) value = kind;
  else if (kind < 0x90) value = pairs(kind & 15);
  else if (kind < 0xa0) value = items(kind & 15);
  else if (kind < 0xc0) value = text(kind & 31);
  else if (kind >= 0xe0) value = kind - 256;
  else switch (kind) {
    case 0xc0: value = null; break;
    case 0xc2: value = false; break;
    case 0xc3: value = true; break;
    case 0xc4: value = part(u8()); break;
    case 0xc5: value = part(u16()); break;
    case 0xc6: value = part(u32()); break;
    case 0xc7: value = ext(u8()); break;
    case 0xc8: value = ext(u16()); break;
    case 0xc9: value = ext(u32()); break;
    case 0xca: value = view.getFloat32(need(4)); break;
    case 0xcb: value = view.getFloat64(need(8)); break;
    case 0xcc: value = u8(); break;
    case 0xcd: value = u16(); break;
    case 0xce: value = u32(); break;
    case 0xcf: value = view.getBigUint64(need(8)); break;
    case 0xd0: value = view.getInt8(need(1)); break;
    case 0xd1: value = view.getInt16(need(2)); break;
    case 0xd2: value = view.getInt32(need(4)); break;
    case 0xd3: value = view.getBigInt64(need(8)); break;
    case 0xd4: case 0xd5: case 0xd6: case 0xd7: case 0xd8: value = ext(1 << (kind - 0xd4)); break;
    case 0xd9: value = text(u8()); break;
    case 0xda: value = text(u16()); break;
    case 0xdb: value = text(u32()); break;
    case 0xdc: value = items(u16()); break;
    case 0xdd: value = items(u32()); break;
    case 0xde: value = pairs(u16()); break;
    case 0xdf: value = pairs(u32()); break;
    default: throw new Error("no msgpack");
  }
  return { value, at };
}

export function whole(bytes) { return read(bytes).value; }

const NAMES = { 2: "tensor", 3: "image", 19: "table", 20: "table", 21: "table", 23: "slice", 25: "pattern" };
const ASCII = new Set([6, 7, 8, 9, 11, 18]);

// A value as one text, about `limit` characters long.
export function tell(value, limit = 400) {
  const said = spell(value, limit, 0);
  return said.length > limit ? said.slice(0, limit - 1) + "…" : said;
}

function spell(value, limit, depth) {
  if (depth > 8) return "…";
  if (value === null || value === undefined) return "None";
  if (value === true) return "True";
  if (value === false) return "False";
  if (typeof value === "bigint") return value.toString();
  if (typeof value === "number") return Number.isInteger(value) ? String(value) : String(Number(value.toPrecision(7)));
  if (typeof value === "string") return depth ? JSON.stringify(value.slice(0, limit)) : value.slice(0, limit + 1);
  if (value instanceof Uint8Array) return `bytes (${size(value.length)})`;
  if (value instanceof Large) return `a value of ${size(value.bytes)}`;
  if (value instanceof Ext) return spellExt(value, limit, depth);
  const parts = [];
  let length = 0;
  const named = value instanceof Map;
  for (const item of value) {
    const part = named
      ? (typeof item[0] === "string" ? item[0] : spell(item[0], limit, depth + 1)) + ": " + spell(item[1], limit, depth + 1)
      : spell(item, limit, depth + 1);
    parts.push(part);
    length += part.length + 2;
    if (length > limit) { parts.push("…"); break; }
  }
  return named ? `{${parts.join(", ")}}` : `[${parts.join(", ")}]`;
}

function spellExt(ext, limit, depth) {
  try {
    if (ext.code === 1 || ext.code === 17) {
      const [dtype, shape] = whole(ext.bytes);
      return `array ${typeof dtype === "string" ? dtype.replace(/^[<>|=]/, "") : "structured"} (${shape.join(", ")})`;
    }
    if (ext.code === 5 || ext.code === 15 || ext.code === 16) {
      const inner = spell(whole(ext.bytes), limit, depth + 1).slice(1, -1);
      return ext.code === 5 ? `(${inner})` : `{${inner}}`;
    }
    if (ASCII.has(ext.code)) return utf8.decode(ext.bytes).slice(0, limit);
  } catch { /* damaged: told by its size */ }
  return `${NAMES[ext.code] || `value of kind ${ext.code}`} (${size(ext.bytes.length)})`;
}

function size(n) {
  return n < 1024 ? `${n} B` : n < 1048576 ? `${(n / 1024).toFixed(1)} KiB` : `${(n / 1048576).toFixed(1)} MiB`;
}
