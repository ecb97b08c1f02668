// Texts of strangers reach the page by textContent alone, so they are never markup.
"use strict";

const byId = (id) => document.getElementById(id);
const count = (number) => number.toLocaleString("en");
const size = () => (matchMedia("(max-width: 40rem)").matches ? 12 : 24);
const sharp = Math.min(2, Math.ceil(devicePixelRatio || 1));
let about = null;
// Places of the pages before this one: of a search, they cannot be computed.
let trail = [];
let page = { place: 0, next: null, rows: [] };
let search = "";
let opened = -1;
let asked = 0;

async function get(name, query) {
  const answer = await fetch(`${name}?${new URLSearchParams(query)}`);
  const found = await answer.json();
  if (!answer.ok) throw new Error(found.problem);
  return found;
}

function make(tag, text, style) {
  const made = document.createElement(tag);
  if (text !== undefined) made.textContent = text;
  if (style) made.className = style;
  return made;
}

function picture(row, side, seen) {
  const image = make("img");
  image.alt = `Row ${row}, ${seen ? "as the network sees it" : "as stored"}`;
  image.decoding = "async";
  const query = { row, side: side * sharp, seen: Number(seen), overlays: Number(byId("overlays").checked) };
  if (seen) query.epoch = byId("epoch").value || 0;
  image.src = `image?${new URLSearchParams(query)}`;
  return image;
}

function pictures(row, side) {
  if (!about.pixels) return [];
  return (about.transform === null ? [false] : [false, true]).map((seen) => [seen, picture(row, side, seen)]);
}

function card(found, number) {
  const made = make("button", undefined, about.transform === null ? "card" : "card both");
  made.type = "button";
  if (about.pixels) {
    const frame = make("span", undefined, "frame");
    frame.append(...pictures(found.row, 192).map(([, image]) => image));
    made.append(frame);
  }
  const lines = make("span", undefined, "lines");
  const { label, [about.boxes]: drawn, ...others } = found.texts;
  lines.append(make("span", [count(found.row), label].filter(Boolean).join(" · ")));
  for (const text of Object.values(others).filter(Boolean).slice(0, 2)) lines.append(make("span", text, "text"));
  if (found.problem) lines.append(make("span", found.problem, "problem"));
  made.append(lines);
  made.addEventListener("click", () => open(number));
  return made;
}

function draw() {
  byId("grid").replaceChildren(...page.rows.map(card));
  byId("previous").disabled = !trail.length && page.place === 0;
  byId("next").disabled = page.next === null;
}

function say(text) {
  byId("count").textContent = text;
}

async function show(place, row) {
  const mine = ++asked;
  const wanted = size();
  const asksForRow = row !== undefined;
  const rows = [];
  let found = { next: place };
  let first = place;
  try {
    do {
      const query = { place: found.next, size: wanted - rows.length, search };
      if (row !== undefined) query.row = row;
      found = await get("rows", query);
      if (mine !== asked) return;
      if (row !== undefined) first = found.place;
      row = undefined;
      rows.push(...found.rows);
      if (search && found.next !== null && rows.length < wanted) {
        say(`Searching: ${Math.floor((100 * found.next) / about.rows)} %, ${count(rows.length)} found`);
      }
    } while (search && rows.length < wanted && found.next !== null);
  } catch (error) {
    if (mine === asked) say(error.message);
    return;
  }
  if (asksForRow && !rows.length) {
    // There is no such row: the last ones are the nearest.
    await show(Math.max(0, about.rows - wanted));
    return;
  }
  page = { place: first, next: found.next, rows };
  draw();
  const shown = rows.length ? `${count(rows[0].row)} to ${count(rows.at(-1).row)}` : "none";
  const all = about.rows === about.total ? count(about.rows) : `${count(about.rows)} of ${count(about.total)}`;
  const matches = rows.length ? `${count(rows.length)} found: rows ${shown}` : "Nothing found";
  say(search ? matches : `${all} rows; here: ${shown}`);
  history.replaceState(null, "", `#${new URLSearchParams({ place: first, search })}`);
  scrollTo(0, 0);
}

async function next() {
  if (page.next === null) return;
  trail.push(page.place);
  await show(page.next);
}

async function previous() {
  if (trail.length) await show(trail.pop());
  else if (page.place > 0) await show(search ? 0 : Math.max(0, page.place - size()));
}

function open(number) {
  const found = page.rows[number];
  if (!found) return;
  opened = number;
  byId("detail-title").textContent = [`Row ${count(found.row)}`, found.texts.label].filter(Boolean).join(" · ");
  byId("pair").replaceChildren(
    ...pictures(found.row, 512).map(([seen, image]) => {
      const figure = make("figure");
      const words = seen ? `${about.transform}, epoch ${byId("epoch").value || 0}` : "as stored";
      figure.append(image, make("figcaption", words));
      return figure;
    }),
  );
  const fields = { path: found.path, ...found.texts };
  if (found.problem) fields.problem = found.problem;
  byId("fields").replaceChildren(
    ...Object.entries(fields).filter(([, text]) => text).flatMap(([name, text]) => [
      make("dt", name),
      make("dd", text, name === "problem" && found.problem ? "problem" : ""),
    ]),
  );
  if (!byId("detail").open) byId("detail").showModal();
}

async function turn(step) {
  let number = opened + step;
  if (number >= page.rows.length && page.next !== null) {
    await next();
    number = 0;
  } else if (number < 0 && !byId("previous").disabled) {
    await previous();
    number = page.rows.length - 1;
  }
  open(Math.min(Math.max(number, 0), page.rows.length - 1));
}

function redraw() {
  draw();
  if (byId("detail").open) open(opened);
}

function move(key) {
  const cards = [...byId("grid").children];
  const now = cards.indexOf(document.activeElement);
  const across = getComputedStyle(byId("grid")).gridTemplateColumns.split(" ").length;
  const step = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -across, ArrowDown: across }[key];
  if (now < 0) {
    if (key === "ArrowLeft") previous();
    else if (key === "ArrowRight") next();
    else cards[0]?.focus();
  } else {
    cards[Math.min(Math.max(now + step, 0), cards.length - 1)].focus();
  }
}

function press(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  const typing = event.target.matches("input:not([type=checkbox])");
  if (event.key === "Escape" && typing) event.target.blur();
  if (typing) return;
  if (event.key === "/" && !byId("detail").open) {
    event.preventDefault();
    byId("search").focus();
  } else if (event.key === "m" && about.overlays) {
    byId("overlays").checked = !byId("overlays").checked;
    redraw();
  } else if (event.key.startsWith("Arrow")) {
    if (byId("detail").open) {
      if (event.key === "ArrowLeft") turn(-1);
      if (event.key === "ArrowRight") turn(1);
    } else {
      event.preventDefault();
      move(event.key);
    }
  }
}

async function start() {
  about = await get("about", {});
  document.title = `${about.name} - packtrain`;
  byId("name").textContent = about.name;
  byId("note").textContent = about.note ?? "";
  byId("note").hidden = !about.note;
  byId("overlays-label").hidden = !about.overlays;
  byId("epoch-label").hidden = about.transform === null;
  byId("grid").classList.toggle("both", about.transform !== null);
  byId("find").addEventListener("submit", (event) => {
    event.preventDefault();
    const row = byId("row").value.replace(/[\s,]/g, "");
    search = byId("search").value;
    trail = [];
    if (/^\d+$/.test(row)) {
      byId("row").value = "";
      byId("search").value = search = "";
      show(0, row);
    } else {
      show(0);
    }
  });
  byId("search").addEventListener("input", () => {
    if (!byId("search").value && search) byId("find").requestSubmit();
  });
  byId("next").addEventListener("click", next);
  byId("previous").addEventListener("click", previous);
  byId("overlays").addEventListener("change", redraw);
  byId("epoch").addEventListener("change", redraw);
  byId("close").addEventListener("click", () => byId("detail").close());
  byId("before").addEventListener("click", () => turn(-1));
  byId("after").addEventListener("click", () => turn(1));
  byId("detail").addEventListener("click", (event) => {
    if (event.target === byId("detail")) byId("detail").close();
  });
  byId("detail").addEventListener("close", () => byId("grid").children[opened]?.focus());
  document.addEventListener("keydown", press);
  const kept = new URLSearchParams(location.hash.slice(1));
  search = byId("search").value = kept.get("search") ?? "";
  await show(Number(kept.get("place")) || 0);
}

start().catch((error) => say(error.message));
