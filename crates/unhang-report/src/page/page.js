"use strict";
// Everything from the data reaches the page through textContent, never as markup.
const data = JSON.parse(document.getElementById("data").textContent);
const ALL = -1;

function element(name, attributes, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes || {})) {
    if (value !== null && value !== undefined && value !== false) made.setAttribute(key, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined && child !== ""));
  return made;
}

// ---- the data, unpacked ----

const WIDTH = 8;
const records = [];
for (let at = 0; at < data.records.length; at += WIDTH) {
  const [shape, packed, variant, warm, first, day, detail, plan] = data.records.slice(at, at + WIDTH);
  let rest = packed;
  const take = (base) => { const value = rest % base; rest = Math.floor(rest / base); return value; };
  // Taken in the reverse of the order in which they were packed.
  const drawn = take(2) === 1, source = take(data.sources.length), verdict = take(data.verdicts.length);
  const engine = take(data.engines.length), layout = take(data.layouts.length);
  const dataType = take(data.dataTypes.length), direction = take(data.directions.length);
  const [sizes, other, row, column] = data.shapes.slice(shape * 4, shape * 4 + 4);
  const text = sizes + ":s" + data.words[other];
  records.push({
    text, row, column, drawn, source, verdict, engine, layout, dataType, direction, warm, first, plan,
    day: data.firstDay + day, variant: data.words[variant], detail: data.words[detail],
  });
}

function duration(microseconds) {
  const digits = (value) => (value >= 100 ? value.toFixed(0) : value >= 10 ? value.toFixed(1) : value.toFixed(2));
  if (microseconds >= 1e6) return digits(microseconds / 1e6) + " s";
  if (microseconds >= 1e3) return digits(microseconds / 1e3) + " ms";
  return digits(microseconds) + " µs";
}

const date = (day) => new Date(day * 86400000).toISOString().slice(0, 10);
const key = (it) => [data.directions[it.direction], data.dataTypes[it.dataType], data.layouts[it.layout], it.text].join(":");

// ---- state: in the address, so that a view can be linked to ----

function readState() {
  const given = new URLSearchParams(location.hash.slice(1));
  const index = (names, name, fallback) => {
    const found = names.indexOf(given.get(name));
    return found >= 0 ? found : given.get(name) === "all" ? ALL : fallback;
  };
  const drawn = records.filter((it) => it.drawn);
  return {
    direction: index(data.directions, "direction", drawn.length ? Math.min(...new Set(drawn.map((it) => it.direction))) : ALL),
    dataType: index(data.dataTypes, "dtype", drawn.length ? Math.min(...new Set(drawn.map((it) => it.dataType))) : ALL),
    cell: given.get("cell"),
  };
}

const state = readState();

function writeState() {
  const name = (names, index) => (index === ALL ? "all" : names[index]);
  const parts = { direction: name(data.directions, state.direction), dtype: name(data.dataTypes, state.dataType) };
  if (state.cell) parts.cell = state.cell;
  // A page opened from a file may not be allowed to change its address; the view works without.
  try { history.replaceState(null, "", "#" + new URLSearchParams(parts)); } catch { /* nothing to do */ }
}

// ---- filters and legend ----

function filter(label, names, field, id) {
  const present = new Set(records.filter((it) => it.drawn).map((it) => it[field]));
  const choice = element("select", { id });
  choice.append(element("option", { value: ALL }, "all"));
  names.forEach((name, index) => {
    if (present.has(index) || state[field] === index) choice.append(element("option", { value: index }, name));
  });
  choice.value = String(state[field]);
  choice.addEventListener("change", () => {
    state[field] = Number(choice.value);
    state.cell = null;
    writeState();
    drawMaps();
  });
  return element("label", {}, label, choice);
}

function drawControls() {
  const form = document.getElementById("filters");
  form.append(
    filter("Direction", data.directions, "direction", "filter-direction"),
    filter("Data type", data.dataTypes, "dataType", "filter-data-type"),
  );
  form.addEventListener("submit", (event) => event.preventDefault());
  form.hidden = false;
  const legend = document.getElementById("legend");
  const meanings = {
    works: "works (stronger colour: slower)", hangs: "did not return", crashes: "the process died", wrong: "wrong numbers",
    error: "an error", unsupported: "declined",
  };
  for (const verdict of [...data.verdicts].reverse()) legend.append(element("span", { class: verdict }, meanings[verdict]));
  legend.hidden = false;
}

// ---- maps ----

const byEngine = (it) => it.engine + "/" + it.variant;

function drawMaps() {
  const place = document.getElementById("maps");
  place.replaceChildren();
  const shown = records.filter((it) => it.drawn
    && (state.direction === ALL || it.direction === state.direction)
    && (state.dataType === ALL || it.dataType === state.dataType));
  const engines = new Map();
  for (const record of shown) {
    if (!engines.has(byEngine(record))) engines.set(byEngine(record), []);
    engines.get(byEngine(record)).push(record);
  }
  if (shown.length === 0) place.append(element("p", {}, "Nothing is known for this direction and data type."));
  const order = [...engines.values()].sort((a, b) => a[0].engine - b[0].engine || (a[0].variant < b[0].variant ? -1 : 1));
  for (const found of order) place.append(drawMap(found));
}

function drawMap(found) {
  const { engine, variant } = found[0];
  const name = data.engines[engine] + (variant ? " under " + variant : "");
  const cells = new Map();
  for (const record of found) {
    const at = record.row + "," + record.column;
    if (!cells.has(at)) cells.set(at, []);
    cells.get(at).push(record);
  }
  const used = (pick) => [...new Set(found.map(pick))].sort((a, b) => a - b);
  const rows = used((it) => it.row), columns = used((it) => it.column);
  const times = found.filter((it) => it.warm > 0).map((it) => Math.log(it.warm));
  const fastest = times.reduce((a, b) => Math.min(a, b), Infinity), slowest = times.reduce((a, b) => Math.max(a, b), -Infinity);
  const heat = (time) => (slowest > fastest ? (100 * (Math.log(time) - fastest)) / (slowest - fastest) : 0);
  const header = element("tr", {}, element("th", { scope: "col" }, "channels"));
  for (const column of columns) header.append(element("th", { scope: "col" }, data.columns[column]));
  const body = element("tbody");
  let first = true;
  for (const row of rows) {
    const line = element("tr", {}, element("th", { scope: "row" }, data.rows[row]));
    for (const column of columns) {
      const here = cells.get(row + "," + column);
      if (!here) { line.append(element("td", {}, "·")); continue; }
      const button = drawCell(here, name, data.rows[row] + ", " + data.columns[column], heat);
      button.tabIndex = first ? 0 : -1;
      first = false;
      line.append(element("td", {}, button));
    }
    body.append(line);
  }
  const table = element("table", { class: "grid", "aria-label": name }, element("thead", {}, header), body);
  table.addEventListener("keydown", moveInGrid);
  const bad = found.filter((it) => data.verdicts[it.verdict] !== "works").length;
  const count = element("span", { class: "quiet" }, ` ${found.length} records, ${bad} of them bad`);
  return element("section", { "data-engine": name }, element("h2", {}, name, count), element("div", { class: "scroll" }, table));
}

function drawCell(here, engineName, label, heat) {
  const worst = Math.min(...here.map((it) => it.verdict));
  const verdict = data.verdicts[worst];
  const bad = here.filter((it) => it.verdict === worst).length;
  const times = here.filter((it) => data.verdicts[it.verdict] === "works" && it.warm > 0).map((it) => it.warm);
  const words = { hangs: "hangs", crashes: "crashes", wrong: "wrong", error: "error", unsupported: "declined" };
  const text = verdict === "works" ? (times.length ? duration(Math.min(...times)) : "works") : words[verdict];
  const note = verdict !== "works" && bad < here.length ? `${bad} of ${here.length}` : null;
  const button = element("button", {
    type: "button", class: "cell " + verdict, "data-cell": [data.engines[here[0].engine], here[0].row, here[0].column, here[0].variant].join("."),
    "aria-label": `${label}: ${verdict}${note ? ", " + note : ""}${times.length ? ", " + duration(Math.min(...times)) : ""}`,
  }, text, note ? element("small", {}, note) : null);
  if (verdict === "works" && times.length) button.style.setProperty("--heat", heat(Math.min(...times)).toFixed(0));
  button.addEventListener("click", () => openDetail(here, `${engineName}, ${label}`, button));
  return button;
}

// One stop for the tabulator key in each map; arrows move inside it.
function moveInGrid(event) {
  const steps = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
  const at = event.target.closest("td");
  if (!at || !(event.key in steps || event.key === "Home" || event.key === "End")) return;
  const rows = [...event.currentTarget.tBodies[0].rows].map((row) => [...row.cells]);
  let row = rows.findIndex((cells) => cells.includes(at));
  let column = rows[row].indexOf(at);
  const [down, right] = steps[event.key] || [0, event.key === "Home" ? 1 : -1];
  if (event.key === "Home") column = 0;
  if (event.key === "End") column = rows[row].length;
  for (;;) {
    row += down;
    column += right;
    const cell = rows[row] && rows[row][column];
    if (!cell) return;
    const button = cell.querySelector("button");
    if (!button) continue;
    for (const other of event.currentTarget.querySelectorAll("button")) other.tabIndex = -1;
    button.tabIndex = 0;
    button.focus();
    event.preventDefault();
    return;
  }
}

// ---- one cell, opened ----

function describePlan(number) {
  if (number < 0) return null;
  const [engines, reason, warnings] = data.plans[number];
  const names = engines.map((it) => data.engines[it]);
  const made = element("div", {}, element("strong", {}, "plan: " + names[0]),
    names.length > 1 ? `, then ${names.slice(1).join(", ")}` : "",
    element("p", {}, reason.map((it) => data.words[it]).join("; ")));
  for (const warning of warnings) made.append(element("p", {}, element("strong", {}, "warning: "), data.words[warning]));
  return made;
}

function openDetail(here, title, opener) {
  const dialog = document.getElementById("detail");
  const close = element("button", { type: "button", class: "plain" }, "Close");
  close.addEventListener("click", () => dialog.close());
  dialog.replaceChildren(element("div", { class: "detail-head" }, element("h2", { id: "detail-title" }, title), close));
  const sorted = [...here].sort((a, b) => a.verdict - b.verdict || b.day - a.day);
  for (const it of sorted.slice(0, 200)) {
    const verdict = data.verdicts[it.verdict];
    const times = [it.warm > 0 ? `${duration(it.warm)} warm` : "", it.first > 0 ? `${duration(it.first)} the first time` : ""];
    const facts = [...times.filter(Boolean), data.sources[it.source], date(it.day)].join(", ");
    dialog.append(element("div", { class: "entry" },
      element("p", {}, element("span", { class: "tag " + verdict }, verdict), facts),
      element("p", {}, element("code", {}, key(it))),
      it.detail ? element("p", {}, it.detail) : null,
      describePlan(it.plan)));
  }
  if (sorted.length > 200) dialog.append(element("p", { class: "entry" }, `and ${sorted.length - 200} more`));
  state.cell = opener.dataset.cell;
  writeState();
  dialog.onclose = () => { state.cell = null; writeState(); opener.focus(); };
  dialog.onclick = (event) => { if (event.target === dialog) dialog.close(); };
  dialog.showModal();
}

// ---- layers ----

function drawLayers() {
  if (data.layers.length === 0) return;
  const named = data.layers.some((layer) => layer[0]);
  const header = element("tr");
  for (const name of [named ? "layer" : null, "convolution", "calls", "computed by", "plan"]) {
    if (name) header.append(element("th", { scope: "col", class: name === "calls" ? "number" : null }, name));
  }
  const body = element("tbody");
  for (const [name, problem, calls, engines, plan] of data.layers) {
    const computed = engines.map(([engine, count]) => `${data.engines[engine]} ${count}`).join(", ");
    const line = element("tr");
    if (named) line.append(element("th", { scope: "row" }, name));
    line.append(element("td", {}, element("code", {}, problem)), element("td", { class: "number" }, String(calls)),
      element("td", {}, computed || "–"), element("td", { class: "why" }, describePlan(plan) || ""));
    body.append(line);
  }
  const table = element("table", { class: "layers" }, element("thead", {}, header), body);
  document.getElementById("layers").append(element("section", {},
    element("h2", {}, named ? "Layers" : "Convolutions that programs asked for"),
    element("div", { class: "scroll" }, table)));
}

if (records.some((it) => it.drawn)) {
  drawControls();
  drawMaps();
}
drawLayers();
if (state.cell) {
  const wanted = [...document.querySelectorAll(".cell")].find((it) => it.dataset.cell === state.cell);
  if (wanted) wanted.click();
}
