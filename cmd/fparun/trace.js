"use strict";

// The page shows one head at a time for one query position. For key j and query i
//
//   low     = the least field after j, up to i
//   penalty = slope * max(0, level[j] - low)
//
// and the key is live before position fades[j], fading before dies[j], dead from
// there on. Both were computed when the page was written; the number of tokens
// stands for "not within this text".

const data = JSON.parse(document.getElementById("data").textContent);
const total = data.tokens.length;
const special = new Set(data.special);
const byId = (id) => document.getElementById(id);

// What is shown. from and to are token positions at the edges of the chart.
const view = {
  head: null, query: total - 1, from: 0, to: 0,
  page: 0, // of the text
  kept: [], penalties: null, // of the head's keys, for the query
};

// ---- Data ----

// ints decodes base64 of little-endian int32.
function ints(base64) {
  const bytes = Uint8Array.from(atob(base64), (c) => c.charCodeAt(0));
  const values = new DataView(bytes.buffer);
  return Int32Array.from({ length: bytes.length / 4 }, (_, i) => values.getInt32(4 * i, true));
}

function numbers(series) {
  return Float64Array.from(ints(series.values), (x) => x * series.step);
}

// load decodes a head, once.
function load(index) {
  const d = data.heads[index];
  if (!d.loaded) {
    const field = numbers(d.field);
    const fades = ints(d.fades);
    const dies = d.dies ? ints(d.dies) : new Int32Array(total).fill(total);
    d.loaded = {
      index, layer: d.layer, head: d.head, slope: d.slope,
      deadAt: d.deadAt, // the penalty at which a key is dead; undefined: none is
      field, level: d.level ? numbers(d.level) : field,
      fades, dies, ...rows(dies),
    };
  }
  return d.loaded;
}

// rows gives every key the lowest row that is free from its token to its death.
function rows(dies) {
  const row = new Int32Array(total);
  const ending = new Map(); // position: keys that die there
  const free = new Heap();
  let count = 0;
  for (let j = 0; j < total; j++) {
    for (const dead of ending.get(j) ?? []) free.push(row[dead]);
    ending.delete(j);
    row[j] = free.size > 0 ? free.pop() : count++;
    const end = Math.max(dies[j], j + 1); // a key that is born dead takes its own position
    if (end < total) {
      if (!ending.has(end)) ending.set(end, []);
      ending.get(end).push(j);
    }
  }
  return { row, rowCount: count };
}

// Heap is a binary heap of numbers, the least on top.
class Heap {
  items = [];
  get size() { return this.items.length; }
  push(x) {
    const a = this.items;
    let i = a.push(x) - 1;
    for (let up; i > 0 && a[(up = (i - 1) >> 1)] > x; i = up) a[i] = a[up];
    a[i] = x;
  }
  pop() {
    const a = this.items, top = a[0], x = a.pop();
    let i = 0;
    for (let c; (c = 2 * i + 1) < a.length; i = c) {
      if (c + 1 < a.length && a[c + 1] < a[c]) c++;
      if (a[c] >= x) break;
      a[i] = a[c];
    }
    if (a.length > 0) a[i] = x;
    return top;
  }
}

// state is what key j is to the query at i.
function state(h, j, i) {
  if (j > i) return "later";
  if (i >= h.dies[j]) return "dead";
  return i >= h.fades[j] ? "fading" : "live";
}

// faint reports whether a fading key hardly counts for the query any more: its weight
// has shrunk by e^20, to 2e-9.
function faint(h, j, i) {
  return state(h, j, i) === "fading" && view.penalties[j] > 20;
}

// penalties of all keys for the query at i. A live key has none, whatever the
// rounding of the page's numbers says. The key's own field counts with the inclusive
// interval alone, where it matters only to a key that fades at its own position.
function penalties(h, i) {
  const p = new Float64Array(i + 1);
  for (let j = i, low = Infinity; j >= 0; j--) {
    const least = h.fades[j] === j ? Math.min(low, h.field[j]) : low;
    if (i >= h.fades[j]) p[j] = h.slope * Math.max(0, h.level[j] - least);
    low = Math.min(low, h.field[j]);
  }
  return p;
}

// kept lists the keys that are live or fading for the query at i.
function kept(h, i) {
  const keys = [];
  for (let j = 0; j <= i; j++) if (i < h.dies[j]) keys.push(j);
  return keys;
}

// ---- Text ----

const whole = (x) => x.toLocaleString("en-GB");
const decimal = (x) => x === 0 ? "0" : Math.abs(x) >= 1e6 ? x.toExponential(3) : x.toLocaleString("en-GB", { maximumFractionDigits: 3 });

// spelled is a token on one line; an empty one is the beginning of a character.
function spelled(j) {
  return data.tokens[j] === "" ? "◌" : data.tokens[j].replaceAll("\n", "↵");
}

function position(j) {
  return j < total ? `${whole(j)} “${spelled(j)}”` : "not in this text";
}

// describe is what the tooltip says of key j, after its text.
function describe(h, j) {
  const i = view.query;
  const lines = [`token ${whole(j)} of ${whole(total)}, id ${data.ids[j]}${special.has(j) ? ", special" : ""}`];
  lines.push(`field ${decimal(h.field[j])}, level ${decimal(h.level[j])}`);
  if (j > i) {
    lines.push("comes after the query");
  } else {
    lines.push(`${state(h, j, i)} at query ${whole(i)}: penalty ${decimal(view.penalties[j])}`);
  }
  lines.push(`fades at ${position(h.fades[j])}`);
  if (data.heads[h.index].dies) lines.push(`dead at ${position(h.dies[j])}`);
  return lines.join("\n");
}

const tooltip = byId("tooltip");

function showTooltip(j, x, y) {
  const name = document.createElement("b");
  name.textContent = `“${spelled(j)}”`;
  tooltip.replaceChildren(name, "\n" + describe(view.head, j));
  tooltip.hidden = false;
  // Beside the pointer, on the side with room.
  const box = tooltip.getBoundingClientRect();
  const left = x + 16 + box.width > innerWidth ? x - 16 - box.width : x + 16;
  const top = y + 16 + box.height > innerHeight ? y - 16 - box.height : y + 16;
  tooltip.style.left = `${Math.max(4, left)}px`;
  tooltip.style.top = `${Math.max(4, top)}px`;
}

function hideTooltip() {
  tooltip.hidden = true;
}

// ---- Chart ----

const canvas = byId("canvas");
const pen = canvas.getContext("2d");
const gap = { left: 84, right: 32, top: 12, axis: 50, between: 22, bottom: 44 };
let hovered = -1; // the key under the pointer
let levelY = () => NaN, penaltyY = () => NaN; // where a key's level and penalty were last drawn

// layout measures the canvas. It has three panels: field and levels, penalties, and
// lives, whose rows are at most 14 pixels high; the first takes what the others leave.
function layout() {
  const width = canvas.clientWidth, height = canvas.clientHeight;
  const inner = height - gap.top - gap.axis - gap.between - gap.bottom;
  const penalties = inner * 0.15, lives = Math.min(Math.max(view.head.rowCount * 14, inner * 0.15), inner * 0.4);
  const panel = (top, size) => ({ top, bottom: top + size });
  const upper = panel(gap.top, inner - penalties - lives);
  const middle = panel(upper.bottom + gap.axis, penalties);
  return {
    width, height, left: gap.left, right: width - gap.right,
    upper, middle, lower: panel(middle.bottom + gap.between, lives),
  };
}

const xOf = (l, t) => l.left + ((t - view.from) / (view.to - view.from)) * (l.right - l.left);
const tokenAt = (l, x) => view.from + ((x - l.left) / (l.right - l.left)) * (view.to - view.from);
const clampToken = (t) => Math.min(Math.max(Math.round(t), 0), total - 1);

// niceStep is 1, 2 or 5 times a power of ten, for about so many steps in a span.
function niceStep(span, steps) {
  const raw = span / steps, power = 10 ** Math.floor(Math.log10(raw));
  return power * (raw / power > 5 ? 10 : raw / power > 2 ? 5 : raw / power > 1 ? 2 : 1);
}

// valueRange is the span of the fields and levels that the upper panel shows.
function valueRange(h, first, last) {
  let low = Infinity, high = -Infinity;
  const take = (v) => { low = Math.min(low, v); high = Math.max(high, v); };
  for (let t = first; t <= last; t++) { take(h.field[t]); take(h.level[t]); }
  for (const j of view.kept) if (j < first && view.query >= first) take(h.level[j]);
  const pad = (high - low) * 0.05 || 1;
  return { low: low - pad, high: high + pad };
}

// frame is all that the drawing functions share: the head, the query, the layout,
// the first and the last visible token, and functions that give pixels.
function frame() {
  const h = view.head, l = layout();
  const first = Math.max(0, Math.ceil(view.from)), last = Math.min(total - 1, Math.floor(view.to));
  const values = valueRange(h, first, last), most = h.deadAt ?? 40;
  const rowHeight = (l.lower.bottom - l.lower.top) / h.rowCount;
  const style = getComputedStyle(document.documentElement);
  return {
    h, l, first, last, values, rowHeight, query: view.query,
    most, // the largest penalty that is told from larger ones
    pixelsPerToken: (l.right - l.left) / (view.to - view.from),
    // Where rows are narrow a life fills its row, and a little more against stripes.
    thick: rowHeight < 3 ? rowHeight + 1 : Math.min(rowHeight * 0.7, 9),
    thin: rowHeight < 3 ? rowHeight + 1 : Math.max(1, Math.min(rowHeight * 0.3, 4)),
    x: (t) => xOf(l, t),
    y: (v) => l.upper.bottom - ((v - values.low) / (values.high - values.low)) * (l.upper.bottom - l.upper.top),
    penalty: (p) => l.middle.bottom - (Math.min(p, most) / most) * (l.middle.bottom - l.middle.top),
    row: (j) => l.lower.bottom - (h.row[j] + 0.5) * rowHeight,
    colour: (name) => style.getPropertyValue(`--${name}`).trim(),
  };
}

function draw() {
  const f = frame(), { l } = f, scale = devicePixelRatio || 1;
  levelY = (j) => f.y(f.h.level[j]);
  penaltyY = (j) => f.penalty(view.penalties[j]);
  canvas.width = Math.round(l.width * scale);
  canvas.height = Math.round(l.height * scale);
  pen.setTransform(scale, 0, 0, scale, 0, 0);
  pen.clearRect(0, 0, l.width, l.height);
  pen.font = `13px ${getComputedStyle(document.body).fontFamily}`;
  pen.lineJoin = "round";
  drawScales(f);
  inside(l, l.upper, () => {
    drawKept(f);
    drawMarks(f, f.first, f.last, levelY);
    drawField(f);
  });
  inside(l, l.middle, () => drawMarks(f, f.first, Math.min(f.last, f.query), penaltyY));
  inside(l, l.lower, () => drawLives(f));
  drawQuery(f);
  drawHovered(f);
}

// inside draws within a panel, with some room for whole marks at its edges.
function inside(l, panel, drawing) {
  pen.save();
  pen.beginPath();
  pen.rect(l.left - 6, panel.top - 6, l.right - l.left + 12, panel.bottom - panel.top + 12);
  pen.clip();
  drawing();
  pen.restore();
}

function drawLine(x0, y0, x1, y1) {
  pen.beginPath();
  pen.moveTo(x0, y0);
  pen.lineTo(x1, y1);
  pen.stroke();
}

// drawScales draws grids and their numbers; those of the positions stand below the
// first panel and the last.
function drawScales(f) {
  const { l, values } = f, rows = f.h.rowCount;
  pen.lineWidth = 1;
  pen.strokeStyle = f.colour("line");
  pen.fillStyle = f.colour("muted");
  pen.textAlign = "right";
  pen.textBaseline = "middle";
  const tick = niceStep(values.high - values.low, 6);
  for (let k = Math.ceil(values.low / tick); k * tick <= values.high; k++) {
    drawLine(l.left, f.y(k * tick), l.right, f.y(k * tick));
    pen.fillText(decimal(k * tick), l.left - 8, f.y(k * tick));
  }
  const middle = niceStep(f.most, 3);
  for (let p = 0; p <= f.most * 0.8; p += middle) {
    drawLine(l.left, f.penalty(p), l.right, f.penalty(p));
    pen.fillText(decimal(p), l.left - 8, f.penalty(p));
  }
  drawLine(l.left, f.penalty(f.most), l.right, f.penalty(f.most));
  pen.fillText(f.h.deadAt === undefined ? `≥ ${f.most}` : "dead", l.left - 8, f.penalty(f.most));
  const rowTick = Math.max(1, niceStep(rows, Math.max(1, (l.lower.bottom - l.lower.top) / 40)));
  for (let r = rowTick; r <= rows; r += rowTick) pen.fillText(whole(r), l.left - 8, l.lower.bottom - (r - 0.5) * f.rowHeight);
  pen.textAlign = "center";
  const step = Math.max(1, niceStep(view.to - view.from, Math.max(2, (l.right - l.left) / 110)));
  for (const [panel, name] of [[l.upper, "field and levels"], [l.middle, "penalty"], [l.lower, "keys kept"]]) {
    for (let t = Math.ceil(view.from / step) * step; t <= view.to; t += step) {
      drawLine(f.x(t), panel.top, f.x(t), panel.bottom);
      if (panel !== l.middle) pen.fillText(whole(t), f.x(t), panel.bottom + 13);
    }
    pen.save();
    pen.translate(14, (panel.top + panel.bottom) / 2);
    pen.rotate(-Math.PI / 2);
    pen.fillText(name, 0, 0);
    pen.restore();
  }
  pen.fillText("token", (l.left + l.right) / 2, l.lower.bottom + 31);
}

// drawKept draws the level of every kept key on to the query.
function drawKept(f) {
  const { h, query } = f, many = view.kept.length > 200;
  pen.lineWidth = 1;
  for (const name of ["faint", "fading", "live"]) {
    pen.globalAlpha = name === "faint" ? (many ? 0.12 : 0.35) : many ? 0.3 : 0.8;
    pen.strokeStyle = f.colour(name === "faint" ? "fading" : name);
    pen.beginPath();
    for (const j of view.kept) {
      if (name !== "live" && (name === "faint") !== faint(h, j, query)) continue;
      const y = f.y(h.level[j]), fades = Math.min(h.fades[j], query);
      pen.moveTo(f.x(name === "live" ? j : fades), y);
      pen.lineTo(f.x(name === "live" ? fades : query), y);
    }
    pen.stroke();
  }
  pen.globalAlpha = 1;
}

// drawMarks marks the keys from first to last, at the heights that yOf gives; dead
// and later ones first, so that they hide no other.
function drawMarks(f, first, last, yOf) {
  const { h, query } = f, size = Math.min(3.5, Math.max(1.5, f.pixelsPerToken / 3));
  const marks = { later: [], dead: [], faint: [], fading: [], live: [] };
  for (let j = first; j <= last; j++) marks[faint(h, j, query) ? "faint" : state(h, j, query)].push(j);
  for (const [name, list] of Object.entries(marks)) {
    pen.fillStyle = pen.strokeStyle = f.colour({ later: "dead", faint: "fading" }[name] ?? name);
    pen.globalAlpha = name === "faint" ? 0.35 : 1;
    const radius = name === "live" || name === "fading" ? size + 1.5 : size;
    pen.beginPath();
    for (const j of list) {
      pen.moveTo(f.x(j) + radius, yOf(j));
      pen.arc(f.x(j), yOf(j), radius, 0, 2 * Math.PI);
    }
    if (name === "later") pen.stroke(); else pen.fill();
  }
  pen.globalAlpha = 1;
}

// drawField draws a line through the field; where several tokens share a pixel, it
// goes from the least to the largest field of the pixel.
function drawField(f) {
  const { field } = f.h, each = Math.max(1, Math.floor(1 / f.pixelsPerToken));
  pen.strokeStyle = f.colour("field");
  pen.lineWidth = 1.5;
  pen.beginPath();
  for (let t = f.first; t <= f.last; t += each) {
    let low = field[t], high = low;
    for (let u = t + 1; u < Math.min(t + each, f.last + 1); u++) {
      low = Math.min(low, field[u]);
      high = Math.max(high, field[u]);
    }
    pen.lineTo(f.x(t), f.y(high)); // the first one begins the path
    if (low !== high) pen.lineTo(f.x(t), f.y(low));
  }
  pen.stroke();
}

// drawLives draws a row for every key: thick while live, thin while fading; pale
// where the key is not kept at the query.
function drawLives(f) {
  const { h, query } = f, space = f.pixelsPerToken > 4 ? 1 : 0; // between two keys in a row
  for (const seen of [false, true]) {
    pen.globalAlpha = seen ? 1 : 0.4;
    for (const name of ["live", "fading"]) {
      pen.strokeStyle = f.colour(name);
      pen.lineWidth = name === "live" ? f.thick : f.thin;
      pen.beginPath();
      for (let j = 0; j <= f.last; j++) {
        if (h.dies[j] < f.first || (j <= query && query < h.dies[j]) !== seen) continue;
        const [start, end] = name === "live" ? [j, h.fades[j]] : [h.fades[j], h.dies[j]];
        if (end <= start) continue;
        pen.moveTo(f.x(start), f.row(j));
        pen.lineTo(Math.max(f.x(start) + 1, f.x(end) - space), f.row(j));
      }
      pen.stroke();
    }
  }
  pen.globalAlpha = 1;
}

function drawQuery(f) {
  const { l, query } = f, x = f.x(query);
  if (query < view.from || query > view.to) return;
  pen.strokeStyle = pen.fillStyle = f.colour("query");
  pen.lineWidth = 1.5;
  for (const panel of [l.upper, l.middle, l.lower]) drawLine(x, panel.top, x, panel.bottom);
  pen.textAlign = "center";
  pen.textBaseline = "middle";
  pen.fillText(`query ${whole(query)}`, Math.min(Math.max(x, l.left + 40), l.right - 40), l.upper.bottom + 33);
}

// drawHovered rings the key under the pointer in every panel.
function drawHovered(f) {
  const { h } = f, j = hovered;
  if (j < 0) return;
  pen.strokeStyle = f.colour("text");
  if (j >= f.first && j <= f.last) {
    pen.lineWidth = 2;
    for (const y of j <= f.query ? [levelY(j), penaltyY(j)] : [levelY(j)]) {
      pen.beginPath();
      pen.arc(f.x(j), y, 7, 0, 2 * Math.PI);
      pen.stroke();
    }
  }
  const start = Math.max(j, view.from), end = Math.min(Math.max(h.dies[j], j + 1), view.to);
  if (end < start) return;
  pen.lineWidth = 1;
  pen.strokeRect(f.x(start) - 1, f.row(j) - f.thick / 2 - 2, Math.max(3, f.x(end) - f.x(start)), f.thick + 4);
}

// keyAt is the key at a point of the canvas; -1 where there is none. Among the lives
// it is the one that is drawn there. Above it is the kept key whose level, as far as
// it is drawn, or whose penalty is near, else the token at that position.
function keyAt(x, y) {
  const l = layout(), h = view.head, t = tokenAt(l, x);
  if (t < view.from - 0.5 || t > view.to + 0.5) return -1;
  if (y > l.middle.bottom + 10) {
    const r = Math.floor(((l.lower.bottom - y) / (l.lower.bottom - l.lower.top)) * h.rowCount);
    for (let j = clampToken(t); j >= 0; j--) {
      if (h.row[j] === r) return j <= t && t < Math.max(h.dies[j], j + 1) ? j : -1;
    }
    return -1;
  }
  const levels = y < l.upper.bottom + 10;
  let found = clampToken(t), nearest = 6; // pixels
  for (const j of view.kept) {
    const from = xOf(l, j), to = levels ? xOf(l, view.query) : from;
    const off = Math.hypot(Math.max(0, from - x, x - to), (levels ? levelY(j) : penaltyY(j)) - y);
    if (off < nearest) {
      nearest = off;
      found = j;
    }
  }
  return found;
}

// zoom scales the visible stretch about a token, and move shifts it; both keep it
// within the text.
function zoom(factor, about) {
  const span = Math.min(Math.max((view.to - view.from) * factor, Math.min(8, total - 1)), total - 1);
  const share = (about - view.from) / (view.to - view.from);
  setStretch(about - share * span, span);
}

function move(by) {
  setStretch(view.from + by, view.to - view.from);
}

function setStretch(from, span) {
  view.from = Math.min(Math.max(from, 0), Math.max(0, total - 1 - span));
  view.to = view.from + (span || 1); // a text of one token still has a width
  redraw();
}

// redraw draws once before the next picture, however often it was asked to.
let waiting = false;
function redraw() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => { waiting = false; draw(); });
}

// ---- Text strip and table ----

const pageTokens = 4096; // more spans at once make a browser slow
const text = byId("text");

function fillText() {
  const from = view.page * pageTokens, to = Math.min(from + pageTokens, total);
  const spans = [];
  for (let j = from; j < to; j++) {
    const span = document.createElement("span");
    span.textContent = data.tokens[j] === "" ? "◌" : data.tokens[j].replaceAll("\n", "↵\n");
    span.dataset.token = j;
    spans.push(span);
  }
  text.replaceChildren(...spans);
  text.scrollTop = 0;
  byId("range").textContent = `tokens ${whole(from)} to ${whole(to - 1)} of ${whole(total)}`;
  byId("earlier").disabled = from === 0;
  byId("later").disabled = to === total;
}

function colourText() {
  for (const span of text.children) {
    const j = Number(span.dataset.token);
    const name = state(view.head, j, view.query) + (faint(view.head, j, view.query) ? " faint" : "")
      + (j === view.query ? " query" : "") + (special.has(j) ? " mark" : "");
    if (span.className !== name) span.className = name; // setting it costs even where nothing changes
  }
}

const tableRows = 200; // of the kept keys

function fillKept() {
  const h = view.head, i = view.query, p = view.penalties;
  const listed = view.kept.toSorted((a, b) => p[a] - p[b] || b - a);
  byId("kept-note").textContent = listed.length > tableRows
    ? `The ${tableRows} with the smallest penalty, of ${whole(listed.length)}.` : "In the order of their penalty, the latest first.";
  byId("kept").tBodies[0].replaceChildren(...listed.slice(0, tableRows).map((j) => {
    const row = document.createElement("tr"), s = state(h, j, i);
    const cell = (content, className) => {
      const td = row.insertCell();
      td.textContent = content;
      td.className = className ?? "";
    };
    cell(whole(j));
    cell(context(j), "left text-cell");
    cell(s, `left ${s}`);
    cell(decimal(h.level[j]));
    cell(decimal(p[j]));
    cell(h.fades[j] < total ? whole(h.fades[j]) : "–");
    cell(h.dies[j] < total ? whole(h.dies[j]) : "–");
    return row;
  }));
}

// context is token j between brackets, with a few tokens on both sides.
function context(j) {
  const part = (from, to) => Array.from({ length: Math.max(0, to - from) }, (_, k) => spelled(from + k)).join("");
  return `${part(Math.max(0, j - 4), j)}[${spelled(j)}]${part(j + 1, Math.min(total, j + 4))}`;
}

// ---- What can be changed ----

// show brings everything up to date after a change of head or query.
function show() {
  const h = view.head, i = view.query, keys = kept(h, i);
  const live = keys.filter((j) => i < h.fades[j]).length;
  view.kept = keys;
  view.penalties = penalties(h, i);
  byId("status").textContent = `Layer ${h.layer}, head ${h.head}, query at token ${position(i)}: ` +
    `${whole(live)} live, ${whole(keys.length - live)} fading, ${whole(i + 1 - keys.length)} dead.`;
  byId("slider").value = byId("query").value = i;
  byId("head").value = h.index;
  for (const b of document.querySelectorAll("[data-head]")) b.setAttribute("aria-pressed", Number(b.dataset.head) === h.index);
  colourText();
  bringToText();
  fillKept();
  redraw();
}

function setHead(index) {
  view.head = load(index);
  hovered = -1;
  hideTooltip();
  show();
}

function setQuery(i) {
  view.query = clampToken(i);
  const page = Math.floor(view.query / pageTokens);
  if (page !== view.page) {
    view.page = page;
    fillText();
  }
  show();
}

// stepTo sets the query and brings it into sight.
function stepTo(i) {
  setQuery(i);
  if (view.query < view.from || view.query > view.to) move(view.query - (view.from + view.to) / 2);
}

// bringToText scrolls the text, but not the page, to the query.
function bringToText() {
  const span = text.querySelector(".query");
  if (!span) return;
  const top = span.offsetTop;
  if (top < text.scrollTop || top + span.offsetHeight > text.scrollTop + text.clientHeight) {
    text.scrollTop = top - text.clientHeight / 2;
  }
}

for (const [k, d] of data.heads.entries()) byId("head").add(new Option(`layer ${d.layer}, head ${d.head}`, k));
byId("head").addEventListener("change", (e) => setHead(Number(e.target.value)));
for (const b of document.querySelectorAll("[data-head]")) b.addEventListener("click", () => setHead(Number(b.dataset.head)));
for (const id of ["slider", "query"]) {
  byId(id).max = total - 1;
  byId(id).addEventListener("input", (e) => { if (e.target.value !== "") stepTo(Number(e.target.value)); });
}
const middle = () => (view.query >= view.from && view.query <= view.to ? view.query : (view.from + view.to) / 2);
byId("zoom-in").addEventListener("click", () => zoom(0.5, middle()));
byId("zoom-out").addEventListener("click", () => zoom(2, middle()));
byId("zoom-all").addEventListener("click", () => setStretch(0, total - 1));

const shortcuts = {
  ArrowLeft: () => stepTo(view.query - 1),
  ArrowRight: () => stepTo(view.query + 1),
  PageUp: () => stepTo(view.query - 50),
  PageDown: () => stepTo(view.query + 50),
  Home: () => stepTo(0),
  End: () => stepTo(total - 1),
  "+": () => zoom(0.5, middle()),
  "=": () => zoom(0.5, middle()),
  "-": () => zoom(2, middle()),
  0: () => setStretch(0, total - 1),
};
canvas.addEventListener("keydown", (e) => {
  if (e.ctrlKey || e.metaKey || e.altKey || !shortcuts[e.key]) return;
  e.preventDefault();
  shortcuts[e.key]();
});

canvas.addEventListener("wheel", (e) => {
  if (e.ctrlKey) return; // the browser's own zoom
  const l = layout();
  if (e.deltaY > 0 && view.to - view.from >= total - 1) return; // all is shown: scroll the page
  e.preventDefault();
  if (Math.abs(e.deltaX) > Math.abs(e.deltaY)) move((e.deltaX / (l.right - l.left)) * (view.to - view.from));
  else zoom(2 ** (Math.sign(e.deltaY) / 3), Math.min(Math.max(tokenAt(l, e.offsetX), view.from), view.to));
}, { passive: false });

// A press that does not move sets the query; one that does moves the stretch.
let press = null;
canvas.addEventListener("pointerdown", (e) => {
  if (e.button !== 0) return;
  press = { x: e.offsetX, from: view.from, moved: false };
  canvas.setPointerCapture(e.pointerId);
});
canvas.addEventListener("pointermove", (e) => {
  if (press) {
    press.moved ||= Math.abs(e.offsetX - press.x) > 4;
    if (press.moved) {
      const l = layout();
      hideTooltip();
      move(press.from - ((e.offsetX - press.x) / (l.right - l.left)) * (view.to - view.from) - view.from);
      return;
    }
  }
  const j = keyAt(e.offsetX, e.offsetY);
  if (j >= 0) showTooltip(j, e.clientX, e.clientY); else hideTooltip();
  if (j !== hovered) {
    hovered = j;
    redraw();
  }
});
canvas.addEventListener("pointerup", (e) => {
  if (press && !press.moved) setQuery(tokenAt(layout(), e.offsetX));
  press = null;
});
canvas.addEventListener("pointercancel", () => { press = null; });
canvas.addEventListener("pointerleave", () => {
  hideTooltip();
  hovered = -1;
  redraw();
});

text.addEventListener("pointermove", (e) => {
  const j = e.target.dataset.token;
  if (j !== undefined) showTooltip(Number(j), e.clientX, e.clientY); else hideTooltip();
});
text.addEventListener("pointerleave", hideTooltip);
text.addEventListener("click", (e) => { if (e.target.dataset.token !== undefined) stepTo(Number(e.target.dataset.token)); });
for (const [id, by] of [["earlier", -1], ["later", 1]]) {
  byId(id).addEventListener("click", () => {
    view.page += by;
    fillText();
    colourText();
  });
}

new ResizeObserver(redraw).observe(canvas);
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redraw);
addEventListener("scroll", hideTooltip, { passive: true });

byId("pages").hidden = total <= pageTokens;
view.page = Math.floor(view.query / pageTokens);
view.to = Math.max(1, total - 1);
view.head = load(data.chosen);
fillText();
show();
