// A text of the compiler and the source beside it. Both are long: only the rows on screen are in the document.

const ROW_PX = 18;
const BEYOND = 12;
const MOST_MARKED = 40;
const PRODUCTS = ["wgmma", "mma", "tcgen05.mma"];
const LOOKS = {
  product: PRODUCTS,
  power: ["exp2"],
  copy: ["TMA loads", "TMA stores", "cp.async", "ldmatrix", "global loads", "global stores"],
  lost: ["spills", "PRMT"],
  wait: ["waits for wgmma", "waits for copies", "barriers", "mbarriers", "shuffles", "F2FP", "shared loads", "shared stores"],
};
const LOOK_OF = Object.fromEntries(Object.entries(LOOKS).flatMap(([look, names]) => names.map((name) => [name, look])));

export default hosted(".fs-listing-root", mountListing);

function mountListing(root, data) {
  const scene = { root, folded: true, alone: false, query: "", file: null, wanted: null };
  scene.box = element("div", { class: "fs-canvas fs-listing" });
  root.replaceChildren(scene.box);
  build(scene, data);
  return {
    update(next) {
      setTheme(scene.box);
      if (next.id !== scene.data.id) build(scene, next);
    },
    destroy() {
      scene.watcher?.disconnect();
      root.replaceChildren();
    },
  };
}

// ---- What is there

function build(scene, data) {
  scene.watcher?.disconnect();
  Object.assign(scene, { data, rows: data.rows.split("\n"), selected: -1, line: null, hits: [], hit: -1, hitSet: new Set() });
  scene.loopOf = new Int16Array(scene.rows.length).fill(-1);
  data.loops.forEach((loop, index) => loop.rows.forEach((row) => (scene.loopOf[row] = index)));
  scene.rowsOf = rowsByLine(data);
  const named = data.files.findIndex((file) => file.name === scene.fileName && file.text !== null);
  scene.file = named >= 0 ? named : mostNamed(scene);
  scene.fileName = data.files[scene.file]?.name;
  draw(scene);
  setTheme(scene.box);
  fold(scene);
  placeSource(scene, firstNamed(scene));
  if (scene.query) search(scene, scene.query, false);
}

// Of each file, of each of its lines: the rows that came from it, themselves or through a call there.
function rowsByLine(data) {
  const found = data.files.map(() => new Map());
  data.chain.forEach((chain, row) => {
    if (chain < 0 || data.start[row] >= data.end[row]) return;
    const seen = new Set();
    for (const [file, line] of data.chains[chain]) {
      if (seen.has(`${file}:${line}`)) continue;
      seen.add(`${file}:${line}`);
      if (!found[file].has(line)) found[file].set(line, []);
      found[file].get(line).push(row);
    }
  });
  return found;
}

function mostNamed(scene) {
  const total = (file) => [...scene.rowsOf[file].values()].reduce((sum, rows) => sum + rows.length, 0);
  const own = scene.data.files.map((_, file) => file).filter((file) => scene.data.files[file].text !== null);
  return own.sort((a, b) => total(b) - total(a))[0] ?? -1;
}

function shownText(scene, row) {
  const { start, end } = scene.data;
  if (!scene.folded) return scene.rows[row];
  const text = scene.rows[row].slice(start[row], end[row]);
  return scene.data.kind[row] >= 0 ? aligned(text) : text;
}

// An instruction as 'address  predicate  opcode …', without the wide gap that nvdisasm leaves and the mark at its end.
function aligned(text) {
  const [, address, predicate, rest] = /^\/\*([0-9a-f]+)\*\/\s+(@!?U?P\w+)?\s*(.*?)\s*;?\s*$/.exec(text) ?? [];
  return address ? `${address}  ${(predicate ?? "").padEnd(6)}${rest}` : text;
}

// ---- The document

function draw(scene) {
  const { data } = scene;
  scene.input = element("input", {
    type: "search", placeholder: "Find, or /pattern/", "aria-label": "Find in the text", spellcheck: "false",
    title: "Enter: next. Shift and Enter: previous. / from anywhere in the text. Between slashes: a regular expression.",
  });
  scene.input.value = scene.query;
  scene.count = element("output", { class: "hits", "aria-live": "polite" });
  const before = tool("previous", "Previous hit", () => step(scene, -1));
  const after = tool("next", "Next hit", () => step(scene, 1));
  const bar = element("div", { class: "controls" }, element("div", { class: "find" }, scene.input, before, after), scene.count);
  for (const chooser of [kindsChooser(scene), loopsChooser(scene)]) if (chooser) bar.append(chooser);
  const hasNoise = data.start.some((start, row) => start >= data.end[row]);
  if (hasNoise) bar.append(switchOf("Fold noise", scene.folded, "Lines that only carry locations, declarations and debug data.", (on) => {
    const top = scene.visible[Math.floor(scene.text.scroller.scrollTop / ROW_PX)] ?? 0;
    scene.folded = on;
    fold(scene);
    if (scene.query) search(scene, scene.query, false);
    scene.text.scroller.scrollTop = placeOf(scene, scene.selected >= 0 ? scene.selected : top) * ROW_PX - (scene.selected >= 0 ? 120 : 0);
  }));
  bar.append(switchOf("Source", !scene.alone, "The kernel's source beside the text.", (on) => {
    scene.alone = !on;
    scene.panes.classList.toggle("alone", !on);
    paint(scene);
  }));
  scene.said = element("p", { class: "said", "aria-live": "polite" });
  scene.source = pane("The kernel's source");
  scene.text = pane("The compiler's text");
  scene.textHead = element("div", { class: "pane-head" });
  scene.panes = element("div", { class: `panes${scene.alone || scene.file < 0 ? " alone" : ""}` },
    element("div", { class: "of-source" }, sourceHead(scene), scene.source.scroller),
    element("div", { class: "of-text" }, scene.textHead, scene.text.scroller));
  scene.box.replaceChildren(bar, scene.said, scene.panes);
  listen(scene);
  explain(scene);
}

function tool(name, words, action) {
  const made = element("button", { type: "button", title: words, "aria-label": words }, icon(name));
  made.addEventListener("click", action);
  return made;
}

function switchOf(words, on, help, action) {
  const box = element("input", { type: "checkbox" });
  box.checked = on;
  box.addEventListener("change", () => action(box.checked));
  return element("label", { title: help }, box, element("span", {}, words));
}

function pane(label) {
  const space = element("div", { class: "space" });
  return { space, scroller: element("div", { class: "scroller", tabindex: "0", role: "region", "aria-label": label }, space) };
}

function kindsChooser(scene) {
  const counts = new Map();
  for (const kind of scene.data.kind) if (kind >= 0) counts.set(kind, (counts.get(kind) ?? 0) + 1);
  if (!counts.size) return null;
  const options = [...counts].sort(([a], [b]) => a - b).map(([kind, count]) => [kind, `${scene.data.kinds[kind].name} (${count})`]);
  const made = select("Go to", [["", "instructions…"], ...options], "");
  scene.kinds = made;
  made.addEventListener("change", () => {
    if (made.value === "") return forget(scene);
    const kind = Number(made.value);
    forgetQuery(scene);
    setHits(scene, scene.visible.filter((row) => scene.data.kind[row] === kind), scene.data.kinds[kind].name);
  });
  return made.parentElement;
}

function loopsChooser(scene) {
  if (!scene.data.loops.length) return null;
  const options = scene.data.loops.map((loop, index) => [index, `${index + 1}: ${loop.name}`]);
  const made = select("Loop", [["", "…"], ...options], "");
  made.addEventListener("change", () => {
    if (made.value !== "") choose(scene, scene.data.loops[Number(made.value)].rows[0], true);
    made.value = "";
  });
  return made.parentElement;
}

function sourceHead(scene) {
  const own = scene.data.files.map((file, index) => [index, file]).filter(([, file]) => file.text !== null);
  const made = select("Source", own.map(([index, file]) => [index, file.name]), scene.file);
  scene.files = made;
  made.addEventListener("change", () => {
    showFile(scene, Number(made.value));
    placeSource(scene, firstNamed(scene));
  });
  const about = element("span", { title: "How many lines of the text came from a line, or from what it calls." }, "lines of the text from each");
  return element("div", { class: "pane-head" }, made.parentElement, about);
}

function showFile(scene, file) {
  scene.file = file;
  scene.fileName = scene.data.files[file].name;
  scene.files.value = file;
  paint(scene);
}

function firstNamed(scene) {
  const lines = scene.file >= 0 ? [...scene.rowsOf[scene.file]].filter(([, rows]) => rows.length) : [];
  return lines.length ? Math.min(...lines.map(([line]) => line)) : 1;
}

function placeSource(scene, line) {
  scene.source.scroller.scrollTop = Math.max(0, (line - 4) * ROW_PX);
  paint(scene);
}

function listen(scene) {
  const { text, source, input } = scene;
  for (const one of [text, source]) one.scroller.addEventListener("scroll", () => later(scene));
  text.scroller.addEventListener("click", (event) => onRow(event, (row) => choose(scene, row, false)));
  source.scroller.addEventListener("click", (event) => onRow(event, (line) => chooseLine(scene, scene.file, line)));
  text.scroller.addEventListener("keydown", (event) => onKey(scene, event));
  source.scroller.addEventListener("keydown", (event) => onSourceKey(scene, event));
  input.addEventListener("input", () => search(scene, input.value, true));
  input.addEventListener("keydown", (event) => {
    if (event.key === "Enter") step(scene, event.shiftKey ? -1 : 1);
    else if (event.key === "Escape" && input.value) forget(scene);
    else return;
    event.preventDefault();
  });
  scene.watcher = new ResizeObserver(() => later(scene));
  scene.watcher.observe(text.scroller);
}

// A click that marks text to copy it is no choice.
function onRow(event, action) {
  const row = event.target.closest?.(".row");
  const marked = row?.getRootNode().getSelection?.() ?? getSelection();
  if (row && (!marked || marked.isCollapsed)) action(Number(row.dataset.at));
}

function onKey(scene, event) {
  const moves = { ArrowDown: 1, ArrowUp: -1 };
  if (event.key === "/") scene.input.focus();
  else if (event.key === "n" || event.key === "N") step(scene, event.key === "n" ? 1 : -1);
  else if (event.key in moves && scene.selected >= 0) {
    const place = clamp(placeOf(scene, scene.selected) + moves[event.key], 0, scene.visible.length - 1);
    choose(scene, scene.visible[place], true);
  } else return;
  event.preventDefault();
}

function onSourceKey(scene, event) {
  const moves = { ArrowDown: 1, ArrowUp: -1 };
  if (!(event.key in moves) || !scene.line || scene.line[0] !== scene.file) return;
  chooseLine(scene, scene.file, Math.max(1, scene.line[1] + moves[event.key]));
  event.preventDefault();
}

// ---- Folding, finding, choosing

function fold(scene) {
  const { start, end } = scene.data;
  scene.visible = scene.rows.map((_, row) => row).filter((row) => !scene.folded || start[row] < end[row]);
  const longest = scene.visible.reduce((most, row) => Math.max(most, scene.rows[row].length), 0);
  scene.text.space.style.height = `${scene.visible.length * ROW_PX}px`;
  scene.text.space.style.width = `calc(${Math.min(longest, 4000) + 16}ch * .95)`;
  const hidden = scene.rows.length - scene.visible.length;
  write(scene.textHead, `${scene.visible.length.toLocaleString("en")} lines${hidden ? `, ${hidden.toLocaleString("en")} folded` : ""}`);
  paint(scene);
}

// Where a row stands among those that are visible, or the next one that is.
function placeOf(scene, row) {
  let [low, high] = [0, scene.visible.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (scene.visible[middle] < row) low = middle + 1;
    else high = middle;
  }
  return low;
}

function patternOf(query) {
  const between = /^\/(.+)\/$/.exec(query);
  if (between) return new RegExp(between[1], "gi");
  return new RegExp(query.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"), "gi");
}

function search(scene, query, moves) {
  scene.query = query;
  scene.pattern = null;
  scene.input.removeAttribute("aria-invalid");
  if (scene.kinds) scene.kinds.value = "";
  if (!query) return setHits(scene, [], "");
  try {
    scene.pattern = patternOf(query);
  } catch {
    scene.input.setAttribute("aria-invalid", "true");
    setHits(scene, [], "");
    return write(scene.count, "no regular expression");
  }
  const found = scene.visible.filter((row) => (scene.pattern.lastIndex = 0, scene.pattern.test(shownText(scene, row))));
  setHits(scene, found, "", moves);
}

function forgetQuery(scene) {
  scene.query = scene.input.value = "";
  scene.pattern = null;
}

function forget(scene) {
  forgetQuery(scene);
  scene.line = null;
  if (scene.kinds) scene.kinds.value = "";
  setHits(scene, [], "");
}

function setHits(scene, rows, of, moves = true) {
  Object.assign(scene, { hits: rows, hitSet: new Set(rows), of, hit: -1 });
  if (rows.length && moves) {
    // The first one from where one is looking.
    const top = scene.visible[Math.floor(scene.text.scroller.scrollTop / ROW_PX)] ?? 0;
    scene.hit = Math.max(0, rows.findIndex((row) => row >= top));
    choose(scene, rows[scene.hit], true, true);
  }
  tell(scene);
  paint(scene);
}

function step(scene, by) {
  if (!scene.hits.length) return;
  scene.hit = scene.hit < 0 ? (by > 0 ? 0 : scene.hits.length - 1) : (scene.hit + by + scene.hits.length) % scene.hits.length;
  choose(scene, scene.hits[scene.hit], true, true);
  tell(scene);
}

function tell(scene) {
  const total = scene.hits.length.toLocaleString("en");
  const of = scene.of ? `${scene.of}: ` : "";
  if (!scene.hits.length) write(scene.count, scene.query || scene.of ? `${of}no hit` : "");
  else write(scene.count, scene.hit < 0 ? `${of}${total} hits` : `${of}${scene.hit + 1} of ${total}`);
}

// A row: its source lines are shown beside it.
function choose(scene, row, moves, isHit = false) {
  scene.selected = row;
  if (!isHit) {
    scene.hit = scene.hits.indexOf(row);
    tell(scene);
  }
  const own = chainOf(scene, row).filter(([file]) => scene.data.files[file].text !== null);
  if (!scene.line || !isHit) {
    scene.line = null;
    if (own.length) {
      // The file that is shown stays, where the row has a line in it.
      const place = own.find(([file]) => file === scene.file) ?? own[0];
      if (place[0] !== scene.file) showFile(scene, place[0]);
      reveal(scene.source.scroller, place[1] - 1);
    }
  }
  if (moves) reveal(scene.text.scroller, placeOf(scene, row));
  explain(scene);
  paint(scene);
}

// A line of the source: the rows that came from it are the hits.
function chooseLine(scene, file, line) {
  forgetQuery(scene);
  if (scene.kinds) scene.kinds.value = "";
  scene.line = [file, line];
  const rows = (scene.rowsOf[file].get(line) ?? []).filter((row) => scene.data.start[row] < scene.data.end[row]);
  reveal(scene.source.scroller, line - 1);
  if (!rows.length) scene.selected = -1;
  setHits(scene, rows, `line ${line}`);
  if (!rows.length) explain(scene);
}

function reveal(scroller, place) {
  const [top, height] = [place * ROW_PX, scroller.clientHeight];
  if (top < scroller.scrollTop + ROW_PX || top > scroller.scrollTop + height - 3 * ROW_PX) scroller.scrollTop = Math.max(0, top - height / 3);
}

function chainOf(scene, row) {
  const chain = row >= 0 ? scene.data.chain[row] : -1;
  return chain >= 0 ? scene.data.chains[chain] : [];
}

function explain(scene) {
  const { data, selected } = scene;
  if (selected < 0) {
    const none = scene.line ? "No line of the text came from this line." : "Choose a line to see where it came from, or a line of the source to see what became of it.";
    return scene.said.replaceChildren(none);
  }
  const places = chainOf(scene, selected).map(([file, line]) => `${data.files[file].name.replace(/^kernels\//, "")}:${line}`);
  const parts = [element("b", {}, places.length ? places.join(" ← ") : "From no line of the source")];
  const kind = data.kind[selected] >= 0 ? data.kinds[data.kind[selected]] : null;
  if (kind) parts.push(` · ${kind.name}: ${kind.meaning}`);
  if (scene.loopOf[selected] >= 0) parts.push(` · in loop ${scene.loopOf[selected] + 1}`);
  scene.said.replaceChildren(...parts);
  scene.said.title = scene.said.textContent;
}

// ---- Rows on screen

function later(scene) {
  if (scene.waiting) return;
  scene.waiting = requestAnimationFrame(() => {
    scene.waiting = 0;
    paint(scene);
  });
}

function paint(scene) {
  if (!scene.visible) return;
  window_(scene.text, scene.visible.length, (place) => textRow(scene, scene.visible[place]));
  if (scene.file < 0 || scene.alone) return;
  const lines = scene.data.files[scene.file].text.split("\n");
  const longest = lines.reduce((most, line) => Math.max(most, line.length), 0);
  scene.source.space.style.height = `${lines.length * ROW_PX}px`;
  scene.source.space.style.width = `calc(${longest + 14}ch * .95)`;
  window_(scene.source, lines.length, (place) => sourceRow(scene, lines[place], place + 1));
}

// A row that is what it was stays in the document: replaced under the pointer it would lose its click, and a selection its text.
function window_(pane, count, make) {
  const { scroller, space, shown = new Map() } = pane;
  const first = clamp(Math.floor(scroller.scrollTop / ROW_PX) - BEYOND, 0, count);
  const last = Math.min(count, first + Math.ceil((scroller.clientHeight || 600) / ROW_PX) + 2 * BEYOND);
  const now = new Map();
  for (let place = first; place < last; place++) {
    const row = make(place);
    row.style.top = `${place * ROW_PX}px`;
    const before = shown.get(place);
    now.set(place, before?.isEqualNode(row) ? before : row);
  }
  for (const [place, row] of shown) if (now.get(place) !== row) row.remove();
  let next = space.firstChild;
  for (const row of now.values()) {
    if (row === next) next = next.nextSibling;
    else space.insertBefore(row, next);
  }
  pane.shown = now;
}

function textRow(scene, row) {
  const { data } = scene;
  const mark = data.marks[row];
  const loop = scene.loopOf[row];
  const begins = loop >= 0 && data.loops[loop].rows[0] === row;
  const classes = ["row"];
  if (scene.hitSet.has(row)) classes.push("hit");
  if (row === scene.selected) classes.push("here");
  else if (scene.selected >= 0 && data.chain[row] >= 0 && data.chain[row] === data.chain[scene.selected]) classes.push("same");
  if (data.start[row] >= data.end[row]) classes.push("noise");
  if (begins) classes.push("begins");
  const made = element("div", { class: classes.join(" "), "data-at": row, "data-mark": mark === " " ? null : mark });
  made.append(element("span", { class: "number" }, mark === " " && data.marks.trim() === "" ? String(row + 1) : ""));
  if (mark !== " " || data.marks.trim() !== "") made.append(element("span", { class: "mark" }, mark === "@" ? "⋯" : mark));
  if (data.loops.length) made.append(element("span", { class: `loop${loop >= 0 ? " in" : ""}${loop % 2 === 1 ? " odd" : ""}` }));
  made.append(...marked(scene, shownText(scene, row), data.kind[row]));
  if (begins) made.append(element("span", { class: "name" }, `loop ${loop + 1}: ${data.loops[loop].name}`));
  return made;
}

// The text with what was searched for marked, and an instruction's opcode in the colour of its kind.
function marked(scene, text, kind) {
  const look = kind >= 0 ? LOOK_OF[scene.data.kinds[kind].name] : null;
  const opcode = look ? /^(\s*(?:\/\*[0-9a-f]+\*\/|[0-9a-f]{4,})\s+(?:@!?U?P\w+\s+)?)([A-Z][\w.]*)/.exec(text) : null;
  const parts = opcode ? [[opcode[1], ""], [opcode[2], look], [text.slice(opcode[0].length), ""]] : [[text, ""]];
  const found = [];
  for (const [part, name] of parts) {
    const nodes = scene.pattern ? withMarks(scene.pattern, part) : [part];
    if (name) found.push(element("span", { class: name }, ...nodes));
    else found.push(...nodes.map((node) => (typeof node === "string" ? element("span", {}, node) : node)));
  }
  return found;
}

function withMarks(pattern, text) {
  const nodes = [];
  let at = 0;
  pattern.lastIndex = 0;
  for (let found = pattern.exec(text); found && nodes.length < MOST_MARKED; found = pattern.exec(text)) {
    if (!found[0]) break;
    nodes.push(text.slice(at, found.index), element("mark", {}, found[0]));
    at = found.index + found[0].length;
  }
  nodes.push(text.slice(at));
  return nodes.filter((node) => node !== "");
}

function sourceRow(scene, text, line) {
  const rows = scene.rowsOf[scene.file].get(line);
  const [innermost, ...callers] = chainOf(scene, scene.selected).filter(([file]) => file === scene.file);
  const isOf = (place) => place && place[0] === scene.file && place[1] === line;
  const classes = ["row"];
  if (isOf(scene.line) || (!scene.line && isOf(innermost))) classes.push("here");
  else if (isOf(innermost) || callers.some(isOf)) classes.push("caller");
  return element("div", { class: classes.join(" "), "data-at": line },
    element("span", { class: "lines" }, rows ? String(rows.length) : ""),
    element("span", { class: "number" }, String(line)),
    element("span", {}, text));
}
