// The lanes: who ran on which SM from when to when. canvas.js, timetable.js, words.js and draw.js stand before this file in
// one module: no build. Streamlit calls the default export, an exported page calls mount(). The blob is made by payload.py.

const DRAGGED_PX = 4;
const REACH_PX = 4;
const ZOOM = 1.25;
const LEAST_SPAN_SHARE = 1e-4;

// ---- Hosts

export default hosted(".fs-lanes-root", mount);

// say, where there is somebody to listen: called with {selected, opened} when a piece of work is selected, or none any more,
// and when one is asked to be opened; selected is null or {head, block}, opened null or {head, block, at}.
export function mount(root, bytes, say = null) {
  const scene = { root, say, opened: null };
  load(scene, unpack(bytes));
  return {
    update: (newBytes, newSay) => update(scene, newBytes, newSay),
    destroy: () => dismantle(scene),
  };
}

function update(scene, bytes, say) {
  scene.say = say;
  const blob = unpack(bytes);
  const before = JSON.stringify(scene.blob.selection);
  if (blob.id !== scene.blob.id) {
    const had = scene.selected;
    dismantle(scene);
    load(scene, blob);
    if (had && !scene.selected) report(scene);
    return;
  }
  scene.blob.selection = blob.selection;
  if (blob.selection && JSON.stringify(blob.selection) !== before) choose(scene, placeOf(scene, blob.selection), false);
  recolour(scene);
}

// What a user chose to see stays for the next blob; the time, the zoom and the pointed bar belong to this one.
function load(scene, blob) {
  const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
  const whole = blob.tables.every((table) => table.blocks === 1);
  const selection = blob.selection ?? pieceOf(scene, scene.selected);
  Object.assign(scene, { coloring: whole ? "head" : "block", mapColoring: "bars", order: "end" }, scene.chosen);
  Object.assign(scene, { blob, calm, clock: clockOf(blob), playing: false, frame: 0, dirty: true, shown: {} });
  Object.assign(scene, { time: blob.span, view: { from: 0, to: blob.span, top: 0, bottom: 1 }, hovered: null, walked: null });
  Object.assign(scene, { inks: 0, pointers: new Map() });
  scene.selected = selection ? placeOf(scene, selection) : null;
  scene.slowdowns = slowdownsOf(blob.span);
  scene.slowdown = scene.slowdowns[2];
  build(scene);
  listen(scene);
  recolour(scene);
}

function dismantle(scene) {
  cancelAnimationFrame(scene.frame);
  scene.leaving.abort();
  scene.resizing.disconnect();
  scene.root.replaceChildren();
}

// ---- The document

function build(scene) {
  const label = "Lanes, one for each SM. Left and right go along a lane, up and down to the next lane, Enter selects, Space plays.";
  scene.box = element("div", { class: "fs-canvas fs-lanes", tabindex: "0", role: "group", "aria-label": label });
  scene.slider = element("input", { type: "range", min: 0, max: 1000, step: "any", "aria-label": "Time" });
  scene.stages = scene.blob.tables.map((table, index) => buildStage(scene, table, index));
  scene.stages[0].time.insertBefore(scene.slider, scene.stages[0].lanesTitle);
  scene.box.append(buildControls(scene), ...scene.stages.map((stage) => stage.box), buildFacts(scene), buildHint(scene));
  scene.root.replaceChildren(scene.box);
}

function buildControls(scene) {
  const button = (does, words, content) =>
    element("button", { type: "button", "data-does": does, "aria-label": words, title: words }, content);
  scene.play = button("play", "Play", icon("play"));
  scene.play.classList.add("main");
  if (scene.calm) {
    scene.play.disabled = true;
    scene.play.title = "Your system asks for less motion: step instead.";
  }
  scene.speedBox = select("Speed", scene.slowdowns.map((slow) => [slow, slowdownWords(scene.blob, slow)]), scene.slowdown);
  scene.colorBox = select("Bars", Object.entries(COLORINGS), scene.coloring);
  scene.mapBox = select("Map", Object.entries(MAP_COLORINGS), scene.mapColoring);
  scene.orderBox = select("Lanes", Object.entries(ORDERS), scene.order);
  scene.where = element("output", { "data-name": "where", "aria-live": "off", class: "where" });
  scene.seen = element("output", { "data-name": "view", "aria-live": "off", class: "seen" });
  const words = (does, text) => element("button", { type: "button", "data-does": does, class: "words" }, text);
  return element(
    "div", { class: "controls" },
    element("div", { class: "buttons" }, button("previous", "Start before", icon("previous")), scene.play,
      button("next", "Next start", icon("next"))),
    scene.speedBox.parentElement,
    element("div", { class: "buttons" }, button("out", "Zoom out", icon("minus")), button("in", "Zoom in", icon("plus")),
      words("whole", "Whole run"), words("tail", "Tail")),
    ...[scene.colorBox, scene.mapBox, scene.orderBox].map((box) => box.parentElement),
    scene.seen, scene.where,
  );
}

function buildStage(scene, table, index) {
  const stage = { table, index, shown: {} };
  stage.strip = buildCanvas("strip", `${table.label}: SMs busy over time`);
  stage.lanes = buildCanvas("lanes", `${table.label}: one lane for each SM, one bar for each piece of work`);
  stage.map = buildCanvas("map", `${table.label}: query blocks by heads`);
  stage.state = element("output", { "data-name": "state", "aria-live": "off" });
  stage.lanesName = element("b");
  stage.lanesTitle = element("div", { class: "lanes-title" }, stage.lanesName, stage.state);
  stage.legend = { low: element("span"), ramp: element("i", { class: "ramp", "aria-hidden": "true" }), high: element("span") };
  stage.mapAbout = element("span");
  stage.time = element("div", { class: "time" }, element("b", {}, "SMs busy"), stage.strip.holder, stage.lanesTitle,
    stage.lanes.holder);
  const mapTitle = element("b", {}, table.wholeHeads ? "Heads" : "Query blocks × heads");
  stage.mapBox = element("figure", { class: "map" }, element("figcaption", {}, mapTitle, stage.mapAbout), stage.map.holder,
    element("div", { class: "foot" }, stage.legend.low, stage.legend.ramp, stage.legend.high));
  const about = element("span", { class: "about" }, aboutWords(scene, table));
  stage.box = element("section", { class: "stage", "aria-label": table.label },
    element("header", {}, element("strong", {}, table.label), about, badge(table)),
    element("div", { class: "parts" }, stage.time, stage.mapBox), buildTable(scene, table));
  return stage;
}

// What changes rarely below, what follows the hand above it.
function buildCanvas(name, label) {
  const canvas = element("canvas", { role: "img", "aria-label": label, "data-panel": name });
  const over = element("canvas", { class: "over", "aria-hidden": "true" });
  const contexts = { context: canvas.getContext("2d", { alpha: false }), overContext: over.getContext("2d") };
  return { canvas, over, ...contexts, holder: element("div", { class: "holder" }, canvas, over) };
}

function buildFacts(scene) {
  scene.pointedBox = element("p", { "data-name": "pointed", "aria-live": "polite" });
  scene.selectedWords = element("div", { "data-name": "selected", "aria-live": "polite" });
  scene.open = element("button", { type: "button", "data-does": "open", class: "words" }, "Watch its tiles");
  scene.clear = element("button", { type: "button", "data-does": "clear", class: "words" }, "Clear");
  scene.selectedBox = element("div", { class: "selected", hidden: "" }, element("b", {}, "Selected"), scene.selectedWords,
    ...(canOpen(scene) ? [scene.open] : []), scene.clear);
  return (scene.factsBox = element("div", { class: "facts" }, scene.pointedBox, scene.selectedBox));
}

function canOpen(scene) {
  return Boolean(scene.blob.facts.canOpen && scene.say);
}

function buildHint(scene) {
  return element("p", { class: "hint" }, [
    scene.calm ? "Your system asks for less motion, so nothing plays by itself." : "Space plays and pauses.",
    "“,” and “.” step from start to start, “[” and “]” change the speed.",
    "← → ↑ ↓ Home End go from bar to bar; Enter or a click selects, Escape clears.",
    "“+” and “−”, or Ctrl and the wheel, zoom the time; Shift with ↑ ↓, or with Ctrl and the wheel, the lanes;",
    "dragging moves, 0 shows all.",
  ].join(" "));
}

// Filled when it is opened for the first time.
function buildTable(scene, table) {
  const details = element("details", {}, element("summary", {}, "Table: SMs"));
  details.addEventListener("toggle", () => details.children.length < 2 && details.append(smTable(scene, table)));
  return details;
}

function smTable(scene, table) {
  const row = (tag, cells) => element("tr", {}, ...cells.map((cell) => element(tag, tag === "th" ? { scope: "col" } : {}, cell)));
  const { clock } = scene;
  const rows = table.onSm.map((found, sm) => {
    if (!found.length) return row("td", [String(sm), "0", "never worked", "", ""]);
    const share = `${rounded((100 * table.busy.workedNs[sm]) / table.span)} %`;
    return row("td", [String(sm), count(found.length), share, exactly(clock, table.start[found[0]]), exactly(clock, table.lastEnds[sm])]);
  });
  const head = row("th", ["SM", "pieces of work", "busy", "first start", "last end"]);
  return element("div", { class: "table", tabindex: "0", role: "region", "aria-label": "Table: SMs" },
    element("table", {}, element("thead", {}, head), element("tbody", {}, ...rows)));
}

// ---- Words on the page: what the canvases show, for those who do not see them

function writeWords(scene) {
  const { blob, clock, time, view } = scene;
  const whole = roughly(clock, blob.span);
  write(scene.where, time < blob.span ? `${exactly(clock, time)} of ${whole}` : `${whole}, all done`);
  for (const stage of scene.stages) writeStage(scene, stage);
  const all = view.from <= 0 && view.to >= blob.span && view.top <= 0 && view.bottom >= 1;
  write(scene.seen, all ? "" : `shown: ${roughly(clock, view.from)} to ${roughly(clock, view.to)}${lanesSeen(scene)}`);
  scene.slider.value = (1000 * time) / blob.span;
  const states = scene.stages.map((stage) => stage.state.textContent);
  scene.slider.setAttribute("aria-valuetext", `${exactly(clock, time)}, ${states.join("; ")}`);
}

function writeStage(scene, stage) {
  const { table } = stage;
  const done = countUpTo(table.ends, scene.time);
  const what = table.wholeHeads ? "heads" : "blocks";
  write(stage.state, `${counted(busyAt(table, scene.time), "SM")} busy · ${count(done)} of ${count(table.entries)} ${what} done`);
  if (changed(stage, "legend", scene.inks)) writeLegend(scene, stage, scene.mapColoring === "bars" ? scene.coloring : scene.mapColoring);
}

function writeLegend(scene, { legend, table, mapAbout }, name) {
  write(mapAbout, `coloured by ${COLORINGS[name]}`);
  const { low, high } = RAMPED[name] ? scaleOf(scene.blob, name) : { low: 0, high: (name === "sm" ? table.smCount : table.heads) - 1 };
  const timed = ["duration", "start"].includes(name);
  const word = name === "block" ? "block" : COLORINGS[name];
  const say = (value) => (timed ? roughly(scene.clock, value) : `${word} ${count(Math.max(0, value))}`);
  write(legend.low, name === "tiles" ? counted(low, "tile") : say(low));
  write(legend.high, name === "tiles" ? counted(high, "tile") : say(high));
  const gradient = RAMPED[name] ? scene.colors.ramp.gradient : "none";
  if (legend.ramp.style.background !== gradient) legend.ramp.style.background = gradient;
}

function lanesSeen(scene) {
  const { top, bottom } = scene.view;
  if (top <= 0 && bottom >= 1) return "";
  const { smCount } = scene.stages[0].table;
  return `, lanes ${Math.floor(top * smCount) + 1} to ${Math.ceil(bottom * smCount)}`;
}

function writeFacts(scene) {
  const place = pointed(scene);
  const { selected } = scene;
  const words = place && `${named(scene, place.stage)}${entryWords(scene, scene.blob.tables[place.stage], place.entry)}`;
  write(scene.pointedBox, words ?? "Point at a bar or a cell to read it.");
  scene.selectedBox.hidden = !selected;
  scene.factsBox.classList.toggle("telling", Boolean(place || selected));
  const lines = scene.stages.flatMap((stage) => {
    const entry = entryIn(scene, stage, selected);
    return entry < 0 ? [] : [`${named(scene, stage.index)}${entryWords(scene, stage.table, entry)}. ${sisterWords(scene, stage, entry)}`];
  });
  scene.selectedWords.replaceChildren(...lines.map((words) => element("p", {}, words)));
}

function named(scene, stage) {
  return scene.stages.length > 1 ? `${scene.blob.tables[stage].label}: ` : "";
}

function pointed(scene) {
  return scene.hovered ?? scene.walked;
}

// ---- Time and hands

// One frame for everything that changed since the last one; while playing, frames follow one another.
function refresh(scene) {
  scene.dirty = true;
  if (!scene.frame) scene.frame = requestAnimationFrame((now) => onFrame(scene, now));
}

function onFrame(scene, now) {
  scene.frame = 0;
  if (scene.playing) advance(scene, now);
  if (scene.dirty) draw(scene);
  if (scene.playing) scene.frame ||= requestAnimationFrame((next) => onFrame(scene, next));
}

function advance(scene, now) {
  // A tab that slept must not jump.
  const passedNs = (Math.min(250, now - scene.lastFrame) * 1e6) / scene.slowdown;
  scene.lastFrame = now;
  // Who looks elsewhere while it plays is left there.
  const watched = isShown(scene);
  scene.time = Math.min(scene.blob.span, scene.time + passedNs);
  scene.dirty = true;
  if (watched) follow(scene);
  if (scene.time === scene.blob.span) setPlaying(scene, false);
}

function setPlaying(scene, playing) {
  if (playing && scene.calm) return;
  if (playing && scene.time >= scene.blob.span) scene.time = 0;
  Object.assign(scene, { playing, lastFrame: performance.now() });
  scene.play.replaceChildren(icon(playing ? "pause" : "play"));
  const words = playing ? "Pause" : "Play";
  scene.play.setAttribute("aria-label", words);
  scene.play.title = words;
  if (playing) follow(scene);
  refresh(scene);
}

// Zoomed in, the shown part turns the page when the time leaves it.
function follow(scene) {
  const { view, time } = scene;
  if (!isShown(scene)) show(scene, time - (view.to - view.from) * 0.05, view.to - view.from);
}

function isShown({ time, view }) {
  return time >= view.from && time <= view.to;
}

// A time chosen by hand ends the playing.
function goTo(scene, time) {
  if (scene.playing) setPlaying(scene, false);
  scene.time = clamp(time, 0, scene.blob.span);
  follow(scene);
  refresh(scene);
}

// To the next moment at which something starts, in any of the tables, or to the one before; and point at what starts there.
function stepStart(scene, forward) {
  const { blob } = scene;
  const resting = scene.time >= blob.span;
  const after = (table) => (resting ? 0 : countUpTo(table.starts, scene.time));
  const before = (table) => firstThat(table.entries, (one) => table.starts[one] >= scene.time) - 1;
  const found = blob.tables.flatMap((table, stage) => {
    const at = (forward ? after : before)(table);
    return at >= 0 && at < table.entries ? [{ stage, entry: table.byStart[at], time: table.starts[at] }] : [];
  });
  if (!found.length) return;
  const next = found.reduce((best, one) => (one.time < best.time === forward ? one : best));
  goTo(scene, next.time);
  walkTo(scene, next);
}

// All zooming and moving ends here: within the run, and not closer than a hair of it.
function show(scene, from, width) {
  const { span } = scene.blob;
  const wide = clamp(width, span * LEAST_SPAN_SHARE, span);
  scene.view.from = clamp(from, 0, span - wide);
  scene.view.to = scene.view.from + wide;
  refresh(scene);
}

function showLanes(scene, top, share) {
  const most = Math.max(...scene.blob.tables.map((table) => table.smCount));
  const high = clamp(share, Math.min(1, 4 / most), 1);
  scene.view.top = clamp(top, 0, 1 - high);
  scene.view.bottom = scene.view.top + high;
  refresh(scene);
}

// at: the share of the plot, from the left or the top, whose place must not move.
function zoom(scene, factor, at = 0.5) {
  const { from, to } = scene.view;
  const width = clamp((to - from) / factor, scene.blob.span * LEAST_SPAN_SHARE, scene.blob.span);
  show(scene, from + (to - from - width) * at, width);
}

function zoomLanes(scene, factor, at = 0.5) {
  const { top, bottom } = scene.view;
  const share = Math.min(1, (bottom - top) / factor);
  showLanes(scene, top + (bottom - top - share) * at, share);
}

function showWhole(scene) {
  showLanes(scene, 0, 1);
  show(scene, 0, scene.blob.span);
}

function showTail(scene) {
  const tailOf = (table) => Math.max(table.span - table.firstIdle, table.span / 50);
  const table = scene.blob.tables.reduce((longest, one) => (tailOf(one) > tailOf(longest) ? one : longest));
  const tail = tailOf(table);
  show(scene, table.span - 1.6 * tail, Math.min(scene.blob.span, 1.6 * tail + scene.blob.span - table.span));
}

function choose(scene, place, byHand = true) {
  scene.selected = place;
  ink(scene);
  refresh(scene);
  if (byHand) report(scene);
}

function report(scene) {
  scene.say?.({ selected: pieceOf(scene, scene.selected), opened: scene.opened });
}

function open(scene) {
  if (!scene.selected || !canOpen(scene)) return;
  scene.opened = { ...pieceOf(scene, scene.selected), at: Date.now() };
  report(scene);
}

function hover(scene, place) {
  if (JSON.stringify(place) === JSON.stringify(scene.hovered)) return;
  scene.hovered = place;
  refresh(scene);
}

// Point at a piece of work by key, and bring it into view.
function walkTo(scene, { stage, entry }) {
  Object.assign(scene, { walked: { stage, entry }, hovered: null });
  const { view } = scene;
  const table = scene.blob.tables[stage];
  const width = view.to - view.from;
  if (table.start[entry] < view.from) show(scene, table.start[entry] - width * 0.05, width);
  else if (table.end[entry] > view.to) show(scene, Math.min(table.start[entry], table.end[entry] - width * 0.95), width);
  const lane = scene.stages[stage].laneOf[table.sm[entry]] / table.smCount;
  const share = view.bottom - view.top;
  if (lane < view.top || lane + 1 / table.smCount > view.bottom) showLanes(scene, lane - share / 2, share);
  refresh(scene);
}

// The place that keys start from: pointed at, selected, or the first to start.
function standing(scene) {
  return pointed(scene) ?? scene.selected;
}

function walkAlong(scene, to) {
  const place = standing(scene) ?? { stage: 0, entry: -1 };
  const table = scene.blob.tables[place.stage];
  if (place.entry < 0) return walkTo(scene, { stage: 0, entry: table.byStart[0] });
  const row = table.onSm[table.sm[place.entry]];
  walkTo(scene, { stage: place.stage, entry: row[clamp(to(table.nth[place.entry] - 1, row.length), 0, row.length - 1)] });
}

// Past the last lane of one table stands the first of the next.
function walkAcross(scene, by) {
  const place = standing(scene);
  if (!place) return walkAlong(scene, () => 0);
  const table = scene.blob.tables[place.stage];
  const middle = (table.start[place.entry] + table.end[place.entry]) / 2;
  let [stage, lane] = [place.stage, scene.stages[place.stage].laneOf[table.sm[place.entry]] + by];
  for (;;) {
    const there = scene.stages[stage];
    if (lane >= 0 && lane < there.table.smCount) {
      const row = there.table.onSm[there.order[lane]];
      if (row.length) return walkTo(scene, { stage, entry: nearest(there.table, row, middle) });
      lane += by;
    } else {
      stage += by;
      if (!scene.stages[stage]) return;
      lane = by > 0 ? 0 : scene.stages[stage].table.smCount - 1;
    }
  }
}

function nearest(table, entries, time) {
  const off = (entry) => Math.max(table.start[entry] - time, time - table.end[entry], 0);
  return entries.reduce((best, entry) => (off(entry) < off(best) ? entry : best));
}

function chooseSpeed(scene, by) {
  scene.slowdown = scene.slowdowns[clamp(scene.slowdowns.indexOf(scene.slowdown) + by, 0, scene.slowdowns.length - 1)];
  scene.speedBox.value = scene.slowdown;
}

function listen(scene) {
  scene.leaving = new AbortController();
  const until = { signal: scene.leaving.signal };
  const does = {
    previous: () => stepStart(scene, false),
    play: () => setPlaying(scene, !scene.playing),
    next: () => stepStart(scene, true),
    out: () => zoom(scene, 1 / ZOOM ** 3),
    in: () => zoom(scene, ZOOM ** 3),
    whole: () => showWhole(scene),
    tail: () => showTail(scene),
    open: () => open(scene),
    clear: () => choose(scene, null),
  };
  for (const button of scene.box.querySelectorAll("button")) button.addEventListener("click", () => does[button.dataset.does](), until);
  scene.box.addEventListener("keydown", (event) => onKey(scene, does, event), until);
  scene.slider.addEventListener("input", () => goTo(scene, (Number(scene.slider.value) / 1000) * scene.blob.span), until);
  listenToChoices(scene, until);
  for (const stage of scene.stages) listenToStage(scene, stage, until);
  scene.resizing = new ResizeObserver(() => scene.box.clientWidth === scene.width || measure(scene));
  scene.resizing.observe(scene.root);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => recolour(scene), until);
  // The words in the canvases were drawn before their font was there.
  if (document.fonts.status === "loading") document.fonts.ready.then(() => until.signal.aborted || recolour(scene));
}

function listenToChoices(scene, until) {
  for (const [box, name] of [[scene.colorBox, "coloring"], [scene.mapBox, "mapColoring"], [scene.orderBox, "order"]]) {
    box.addEventListener("change", () => {
      scene[name] = box.value;
      scene.chosen = { ...scene.chosen, [name]: box.value };
      ink(scene);
      refresh(scene);
    }, until);
  }
  scene.speedBox.addEventListener("change", () => (scene.slowdown = Number(scene.speedBox.value)), until);
}

function onKey(scene, does, event) {
  const { key, target, shiftKey } = event;
  if (target.tagName === "SELECT" || event.ctrlKey || event.metaKey || event.altKey) return;
  // A button that has the focus is pressed by Space and Enter itself; the time has keys of its own.
  if ([" ", "Enter"].includes(key) && ["BUTTON", "SUMMARY"].includes(target.tagName)) return;
  if (target === scene.slider && (key.startsWith("Arrow") || ["Home", "End"].includes(key))) return;
  const zoomBy = (factor) => (shiftKey && key !== "+" ? zoomLanes : zoom)(scene, factor);
  const actions = {
    " ": scene.calm ? does.next : does.play,
    ".": does.next,
    ",": does.previous,
    ArrowRight: () => walkAlong(scene, (at) => at + 1),
    ArrowLeft: () => walkAlong(scene, (at) => at - 1),
    Home: () => walkAlong(scene, () => 0),
    End: () => walkAlong(scene, (at, length) => length - 1),
    ArrowUp: () => (shiftKey ? zoomLanes(scene, ZOOM) : walkAcross(scene, -1)),
    ArrowDown: () => (shiftKey ? zoomLanes(scene, 1 / ZOOM) : walkAcross(scene, 1)),
    "+": () => zoomBy(ZOOM),
    "=": () => zoomBy(ZOOM),
    "-": () => zoomBy(1 / ZOOM),
    0: does.whole,
    Enter: () => pointed(scene) && choose(scene, pointed(scene)),
    Escape: () => choose(scene, null),
    "]": () => chooseSpeed(scene, 1),
    "[": () => chooseSpeed(scene, -1),
  };
  if (!actions[key]) return;
  event.preventDefault();
  event.stopPropagation();
  actions[key]();
}

function listenToStage(scene, stage, until) {
  const lanes = stage.lanes.canvas;
  lanes.addEventListener("pointerdown", (event) => onDown(scene, stage, event), until);
  lanes.addEventListener("pointermove", (event) => onMove(scene, stage, event), until);
  lanes.addEventListener("pointerup", (event) => onUp(scene, stage, event), until);
  lanes.addEventListener("pointercancel", (event) => scene.pointers.delete(event.pointerId), until);
  lanes.addEventListener("wheel", (event) => onWheel(scene, stage, event), { ...until, passive: false });
  const map = stage.map.canvas;
  map.addEventListener("pointermove", (event) => hover(scene, mapPlaceAt(stage, event)), until);
  map.addEventListener("click", (event) => choose(scene, mapPlaceAt(stage, event)), until);
  for (const canvas of [lanes, map]) canvas.addEventListener("pointerleave", () => hover(scene, null), until);
  const strip = stage.strip.canvas;
  const goThere = (event) => goTo(scene, ((event.offsetX - GUTTER) / stage.plot.width) * scene.blob.span);
  strip.addEventListener("pointerdown", (event) => {
    strip.setPointerCapture(event.pointerId);
    goThere(event);
  }, until);
  strip.addEventListener("pointermove", (event) => event.buttons && goThere(event), until);
}

function onDown(scene, stage, event) {
  stage.lanes.canvas.setPointerCapture(event.pointerId);
  scene.pointers.set(event.pointerId, { x: event.offsetX, y: event.offsetY });
  Object.assign(scene, { grabbed: grab(scene), dragged: scene.pointers.size > 1 });
}

// Where the fingers are and what was seen when they came or went.
function grab(scene) {
  return { ...scene.view, points: new Map([...scene.pointers].map(([id, point]) => [id, { ...point }])) };
}

function onMove(scene, stage, event) {
  if (!scene.pointers.has(event.pointerId)) {
    hover(scene, event.pointerType === "mouse" ? placeAt(scene, stage, event) : null);
    return;
  }
  scene.pointers.set(event.pointerId, { x: event.offsetX, y: event.offsetY });
  const was = scene.grabbed.points.get(event.pointerId);
  if (Math.hypot(event.offsetX - was.x, event.offsetY - was.y) > DRAGGED_PX) scene.dragged = true;
  if (!scene.dragged) return;
  hover(scene, null);
  if (scene.pointers.size === 2) pinch(scene, stage);
  else drag(scene, stage, event.offsetX - was.x, event.offsetY - was.y);
}

function drag(scene, stage, dx, dy) {
  const { from, to, top, bottom } = scene.grabbed;
  show(scene, from - (dx / stage.plot.width) * (to - from), to - from);
  showLanes(scene, top - (dy / stage.plot.height) * (bottom - top), bottom - top);
}

// Two fingers beside each other stretch the time, two above each other the lanes.
function pinch(scene, stage) {
  const { points, from, to, top, bottom } = scene.grabbed;
  const [[a, b], [c, d]] = [[...points.values()], [...scene.pointers.values()]];
  const factor = Math.hypot(c.x - d.x, c.y - d.y) / Math.max(1, Math.hypot(a.x - b.x, a.y - b.y));
  if (Math.abs(a.x - b.x) >= Math.abs(a.y - b.y)) {
    const held = from + (((a.x + b.x) / 2 - GUTTER) / stage.plot.width) * (to - from);
    const width = clamp((to - from) / factor, scene.blob.span * LEAST_SPAN_SHARE, scene.blob.span);
    show(scene, held - (((c.x + d.x) / 2 - GUTTER) / stage.plot.width) * width, width);
  } else {
    const held = top + (((a.y + b.y) / 2 - ABOVE) / stage.plot.height) * (bottom - top);
    const share = Math.min(1, (bottom - top) / factor);
    showLanes(scene, held - (((c.y + d.y) / 2 - ABOVE) / stage.plot.height) * share, share);
  }
}

function onUp(scene, stage, event) {
  if (!scene.pointers.delete(event.pointerId)) return;
  if (!scene.dragged) {
    const place = placeAt(scene, stage, event);
    if (place) choose(scene, place);
  }
  scene.grabbed = grab(scene);
}

// Ctrl and the wheel zoom, as a pinch on a touchpad does; a sideways wheel moves; a plain one is the page's.
function onWheel(scene, stage, event) {
  const { width, height } = stage.plot;
  const { from, to } = scene.view;
  if (event.ctrlKey || event.metaKey) {
    const factor = ZOOM ** (-clamp(event.deltaY || event.deltaX, -100, 100) / 50);
    if (event.shiftKey) zoomLanes(scene, factor, clamp((event.offsetY - ABOVE) / height, 0, 1));
    else zoom(scene, factor, clamp((event.offsetX - GUTTER) / width, 0, 1));
  } else if (Math.abs(event.deltaX) > Math.abs(event.deltaY) && to - from < scene.blob.span) {
    show(scene, from + (event.deltaX / width) * (to - from), to - from);
  } else {
    return;
  }
  event.preventDefault();
}

// The bar under the hand, or one a few pixels beside it.
function placeAt(scene, stage, event) {
  const { table, plot, order } = stage;
  const { view } = scene;
  const [x, y] = [event.offsetX - GUTTER, event.offsetY - ABOVE];
  if (x < 0 || x > plot.width || y < 0 || y >= plot.height) return null;
  const lane = (view.top + (y / plot.height) * (view.bottom - view.top)) * table.smCount;
  const sm = order[Math.floor(lane)];
  const aPixel = (view.to - view.from) / plot.width;
  const time = view.from + x * aPixel;
  const own = table.rows[sm * table.slots + Math.floor((lane % 1) * table.slots)];
  for (const row of [own, table.onSm[sm]]) {
    if (!row.length) continue;
    const entry = nearest(table, row, time);
    if (Math.max(table.start[entry] - time, time - table.end[entry]) <= REACH_PX * aPixel) return { stage: stage.index, entry };
  }
  return null;
}

function mapPlaceAt({ table, index, mapPlot }, event) {
  const [x, y] = [event.offsetX - MAP_GUTTER, event.offsetY - ABOVE];
  const [head, block] = [Math.floor((x / mapPlot.width) * table.heads), Math.floor((y / mapPlot.height) * table.blocks)];
  if (head < 0 || head >= table.heads || block < 0 || block >= table.blocks) return null;
  const entry = table.cells[head * table.blocks + block];
  return entry >= 0 ? { stage: index, entry } : null;
}
