// Colours, sizes and the canvases. Bars and cells are written pixel by pixel: see drawLanes.

const COLORINGS = { block: "query block", head: "head", tiles: "key tiles", duration: "duration", start: "start time", sm: "SM" };
const RAMPED = { block: 1, tiles: 1, duration: 1, start: 1 };
const MAP_COLORINGS = { bars: "like the bars", start: "by start time", sm: "by SM" };
const ORDERS = { end: "first to finish on top", id: "by SM number" };
const GUTTER = 46;
const ABOVE = 20;
const BELOW = 22;
const MAP_GUTTER = 38;
const LEAST_MAP_PX = 130;
const STRIP_PX = 34;
const ROWS = 256;
const PALE = 0.3;
const MOST_HUES = 1024;
const MOST_OUTLINES = 200;

// ---- Colours

function recolour(scene) {
  setTheme(scene.box);
  const steps = ["step-0", "step-1", "step-2", "step-3", "step-4"];
  const names = ["bg", "fg", "muted", "line", "track", "alpha", "here", "busy"];
  const colors = colorsOf(scene.box, [...names, ...steps]);
  colors.steps = steps.map((name) => colors[name]);
  colors.ramp = ramp(colors.steps.map((color, at) => [at / (steps.length - 1), color]));
  colors.packed = Object.fromEntries(names.map((name) => [name, packed(colors[name])]));
  colors.paleHere = packed(mixed(colors.bg, colors.here, PALE));
  scene.colors = colors;
  scene.font = getComputedStyle(scene.box).fontFamily;
  ink(scene);
  measure(scene);
}

// The colour of every bar, full and pale, and of every cell of the map; the selected one's sisters are tinted.
function ink(scene) {
  for (const stage of scene.stages) {
    stage.inks = inksOf(scene, stage, scene.coloring);
    stage.mapInks = scene.mapColoring === "bars" ? stage.inks : inksOf(scene, stage, scene.mapColoring);
  }
  scene.inks++;
}

function inksOf(scene, { table, index }, coloring) {
  const { colors, blob } = scene;
  const scale = scaleOf(blob, coloring);
  const palette = RAMPED[coloring] ? rampColors(colors) : hues(scene, coloring === "sm" ? table.smCount : table.heads);
  const shadesOf = (color) => [packed(color), packed(mixed(colors.bg, color, PALE))];
  const shades = palette.map((color) => [shadesOf(color), shadesOf(tinted(color, colors.here))]);
  const chosen = entryIn(scene, { table, index }, scene.selected);
  const head = chosen >= 0 ? table.head[chosen] : -1;
  const inks = { full: new Uint32Array(table.entries), pale: new Uint32Array(table.entries) };
  for (let entry = 0; entry < table.entries; entry++) {
    const [full, pale] = shades[scale.place(table, entry, shades.length)][table.head[entry] === head ? 1 : 0];
    inks.full[entry] = full;
    inks.pale[entry] = pale;
  }
  return inks;
}

// The hue of "you are here" in the lightness that the colour has, so that a sister still tells what it told before.
function tinted([red, green, blue], here) {
  const light = (0.299 * red + 0.587 * green + 0.114 * blue) / 255;
  return light > 0.5 ? mixed(here, [255, 255, 255], (light - 0.5) * 1.2) : mixed(here, [0, 0, 0], (0.5 - light) * 1.1);
}

function valueOf(coloring, table, entry) {
  return coloring === "duration" ? table.end[entry] - table.start[entry] : table[coloring][entry];
}

// From a value to its place in a palette. One scale for both tables, so that their colours can be compared.
function scaleOf(blob, coloring) {
  if (!RAMPED[coloring]) return { place: (table, entry, size) => table[coloring][entry] % size };
  let [low, high] = [Infinity, -Infinity];
  for (const table of blob.tables) {
    for (let entry = 0; entry < table.entries; entry++) {
      const value = valueOf(coloring, table, entry);
      low = Math.min(low, value);
      high = Math.max(high, value);
    }
  }
  const place = (table, entry, size) => Math.round(((valueOf(coloring, table, entry) - low) / (high - low || 1)) * (size - 1));
  return { place, low, high };
}

function rampColors({ steps }) {
  return Array.from({ length: 65 }, (_, at) => {
    const below = Math.min(steps.length - 2, Math.floor((at / 64) * (steps.length - 1)));
    return mixed(steps[below], steps[below + 1], (at / 64) * (steps.length - 1) - below);
  });
}

// Neighbours differ in lightness; the browser turns oklch into red, green and blue.
function hues(scene, wanted) {
  const size = clamp(wanted, 1, MOST_HUES);
  const dark = scene.box.dataset.theme === "dark";
  const line = Object.assign(document.createElement("canvas"), { width: size, height: 1 }).getContext("2d", { willReadFrequently: true });
  for (let at = 0; at < size; at++) {
    const light = dark ? [0.62, 0.76][at % 2] : [0.56, 0.72][at % 2];
    fill(line, `oklch(${light} .085 ${250 + (at * 360) / size})`, at, 0, 1, 1);
  }
  const { data } = line.getImageData(0, 0, size, 1);
  return Array.from({ length: size }, (_, at) => [...data.subarray(4 * at, 4 * at + 3)]);
}

// ---- Sizes

function measure(scene) {
  const width = scene.box.clientWidth;
  if (!width) return;
  const wide = width >= 860;
  Object.assign(scene, { width, ratio: devicePixelRatio || 1 });
  scene.box.classList.toggle("wide", wide);
  for (const stage of scene.stages) sizeStage(scene, stage, width, wide);
  const { plot } = scene.stages[0];
  Object.assign(scene.slider.style, { marginLeft: `${GUTTER - 8}px`, width: `${plot.width + 16}px` });
  scene.shown = {};
  scene.dirty = true;
  draw(scene);
}

function sizeStage(scene, stage, width, wide) {
  const { table } = stage;
  const cell = wide ? 260 : Math.min(width - MAP_GUTTER - 4, 420);
  const mapWidth = clamp(table.heads * 26, Math.min(96, cell), cell);
  const height = lanesHeight(table, scene.stages.length);
  stage.plot = { width: wide ? width - GUTTER - Math.max(mapWidth, LEAST_MAP_PX) - MAP_GUTTER - 28 : width - GUTTER - 2, height };
  stage.mapPlot = { width: mapWidth, height: clamp(table.blocks * 20, 28, wide ? height : Math.min(height, 420)) };
  for (const canvas of [stage.lanes.canvas, stage.lanes.over]) sizeCanvas(canvas, GUTTER + stage.plot.width + 2, ABOVE + height + BELOW);
  for (const canvas of [stage.map.canvas, stage.map.over]) sizeCanvas(canvas, MAP_GUTTER + mapWidth + 2, ABOVE + stage.mapPlot.height + 2);
  for (const canvas of [stage.strip.canvas, stage.strip.over]) sizeCanvas(canvas, GUTTER + stage.plot.width + 2, STRIP_PX + 2);
  stage.mapBox.style.width = `${MAP_GUTTER + Math.max(mapWidth, LEAST_MAP_PX) + 2}px`;
  stage.shown = {};
  stage.lanes.strips = null;
}

// Four pixels a lane where all are to be seen at once, more where there are few of them or several programs on each.
function lanesHeight({ smCount, slots }, tables) {
  const aLane = clamp(Math.floor((tables > 1 ? 396 : 528) / smCount), 1, 18) * (slots > 2 ? 1.5 : slots > 1 ? 1.25 : 1);
  return clamp(Math.round(smCount * aLane), 40, 720);
}

function orderOf(scene, table) {
  const sms = Array.from({ length: table.smCount }, (_, sm) => sm);
  return scene.order === "id" ? sms : sms.sort((a, b) => table.lastEnds[a] - table.lastEnds[b] || a - b);
}

// Pixels of the plot, from its left and from its top; in device pixels where scale is the device's ratio.
function xOf(scene, stage, time, scale = 1) {
  return ((time - scene.view.from) / (scene.view.to - scene.view.from)) * stage.plot.width * scale;
}

function yOf(scene, stage, lane, scale = 1) {
  const { top, bottom } = scene.view;
  return Math.round(((lane / stage.table.smCount - top) / (bottom - top)) * stage.plot.height * scale);
}

// ---- Drawing: each canvas only when what it shows has changed

function draw(scene) {
  scene.dirty = false;
  if (scene.ratio !== (devicePixelRatio || 1)) return measure(scene);
  const { view } = scene;
  const seen = `${view.from}/${view.to}/${view.top}/${view.bottom}`;
  const places = JSON.stringify([scene.hovered, scene.walked, scene.selected]);
  for (const stage of scene.stages) {
    if (changed(stage, "order", scene.order)) nameLanes(scene, stage);
    if (changed(stage, "lanes", `${scene.inks}/${scene.time}/${seen}/${scene.order}`)) drawLanes(scene, stage);
    if (changed(stage, "over", `${scene.inks}/${scene.time}/${seen}/${scene.order}/${places}`)) drawOverLanes(scene, stage);
    const states = `${countUpTo(stage.table.starts, scene.time)}/${countUpTo(stage.table.ends, scene.time)}`;
    if (changed(stage, "map", `${scene.inks}/${states}`)) drawMap(scene, stage);
    if (changed(stage, "overMap", `${scene.inks}/${places}`)) drawOverMap(scene, stage);
    if (changed(stage, "strip", scene.inks)) drawStrip(scene, stage);
    if (changed(stage, "overStrip", `${scene.inks}/${scene.time}/${seen}`)) drawOverStrip(scene, stage);
  }
  if (changed(scene, "words", `${scene.time}/${seen}/${scene.inks}`)) writeWords(scene);
  if (changed(scene, "facts", places)) writeFacts(scene);
}

function nameLanes(scene, stage) {
  stage.order = orderOf(scene, stage.table);
  stage.laneOf = new Uint32Array(stage.order.length);
  stage.order.forEach((sm, lane) => (stage.laneOf[sm] = lane));
  write(stage.lanesName, `SMs, ${ORDERS[scene.order]}`);
}

// The pixels of a plot, to be written by hand.
function rasterOf(panel, width, height) {
  if (panel.raster?.width !== width || panel.raster.height !== height) {
    const image = new ImageData(width, height);
    panel.raster = { image, pixels: new Uint32Array(image.data.buffer), width, height };
  }
  return panel.raster;
}

// A row of bars is one row of pixels, written by hand and then drawn as high as its lane is: however many bars there are, a
// frame costs about as much as its pixels.
function drawLanes(scene, stage) {
  const { lanes, plot, table } = stage;
  const { context, canvas } = lanes;
  const [width, height] = [plot.width, plot.height].map((px) => Math.round(px * scene.ratio));
  const rows = { ...rasterOf(lanes, width, ROWS), context, background: scene.colors.packed.bg, drawn: [] };
  lanes.strips ??= Object.assign(document.createElement("canvas"), { width, height: ROWS }).getContext("2d");
  rows.strips = lanes.strips;
  fill(context, css(scene.colors.bg), 0, 0, canvas.width, canvas.height);
  context.save();
  context.translate(Math.round(GUTTER * scene.ratio), Math.round(ABOVE * scene.ratio));
  context.beginPath();
  context.rect(0, 0, width, height);
  context.clip();
  const idle = new Path2D();
  for (let lane = 0; lane < table.smCount; lane++) {
    const [top, bottom] = [yOf(scene, stage, lane, scene.ratio), yOf(scene, stage, lane + 1, scene.ratio)];
    if (bottom > 0 && top < height) paintLane(scene, stage, rows, idle, stage.order[lane], top, bottom);
  }
  flush(rows);
  context.fillStyle = hatching(context, scene.colors.line, Math.round(6 * scene.ratio));
  context.fill(idle);
  context.restore();
  drawAxes(scene, stage);
}

function paintLane(scene, stage, rows, idle, sm, top, bottom) {
  const { table } = stage;
  const gap = bottom - top >= 4 ? Math.max(1, Math.floor(scene.ratio)) : 0;
  for (let slot = 0; slot < table.slots; slot++) {
    const from = top + Math.round(((bottom - gap - top) * slot) / table.slots);
    const to = Math.max(from + 1, top + Math.round(((bottom - gap - top) * (slot + 1)) / table.slots));
    paintRow(scene, stage, rows, table.rows[sm * table.slots + slot], from, to - (table.slots > 1 && to - from > 4 ? 1 : 0));
  }
  const [out, end] = [table.lastEnds[sm], table.span].map((time) => clamp(xOf(scene, stage, time, scene.ratio), 0, rows.width));
  if (end > out) idle.rect(Math.ceil(out), top, Math.floor(end) - Math.ceil(out), bottom - top);
}

// A modelled bar is hollow, and its edge dashed where that is no noise.
function paintRow(scene, stage, rows, entries, top, bottom) {
  if (!entries.length) return;
  const high = bottom - top;
  const edge = Math.max(1, Math.min(Math.floor(scene.ratio), high >> 2));
  const paint = (kind, ...places) => paintBars(scene, stage, rows, entries, rowFor(rows, places), kind);
  if (stage.table.provenance !== "modelled") {
    paint("solid", [top, high]);
  } else if (high < 3) {
    paint("dashed", [top, high]);
  } else {
    paint("inside", [top + edge, high - 2 * edge]);
    paint(high >= 7 * scene.ratio ? "dashed" : "solid", [top, edge], [bottom - edge, edge]);
  }
}

// An empty row of pixels that will be drawn at these places, each [top, height].
function rowFor(rows, places) {
  if (rows.drawn.length === rows.height) flush(rows);
  const row = rows.drawn.push(places) - 1;
  rows.pixels.fill(rows.background, row * rows.width, (row + 1) * rows.width);
  return row;
}

function flush({ context, strips, image, width, drawn }) {
  strips.putImageData(image, 0, 0, 0, 0, width, drawn.length);
  context.imageSmoothingEnabled = false;
  for (const [row, places] of drawn.entries()) {
    for (const [top, height] of places) context.drawImage(strips.canvas, 0, row, width, 1, 0, top, width, height);
  }
  drawn.length = 0;
}

// Where an SM has no work any more, or never had.
function hatching(context, color, pitch) {
  const tile = Object.assign(document.createElement("canvas"), { width: pitch, height: pitch });
  const pixels = tile.getContext("2d");
  for (let x = 0; x < pitch; x++) fill(pixels, css(color), x, (2 * pitch - 1 - x) % pitch, 1, 1);
  return context.createPattern(tile, "repeat");
}

// Most are too short for a call of fill() to be worth its while.
function line({ pixels, width }, y, left, right, color) {
  if (right - left > 16) pixels.fill(color, y * width + left, y * width + right);
  else for (let at = y * width + left; at < y * width + right; at++) pixels[at] = color;
}

function paintBars(scene, stage, raster, entries, y, kind) {
  const { table, inks } = stage;
  const { view, time, colors, ratio } = scene;
  const scale = (stage.plot.width * ratio) / (view.to - view.from);
  const dash = Math.round(3 * ratio);
  // Entries in one row follow one another.
  for (let at = firstThat(entries.length, (one) => table.end[entries[one]] >= view.from); at < entries.length; at++) {
    const entry = entries[at];
    if (table.start[entry] > view.to) break;
    const begins = Math.floor((table.start[entry] - view.from) * scale);
    const ends = Math.max(begins + 1, Math.floor((table.end[entry] - view.from) * scale));
    const [left, right] = [Math.max(0, begins), Math.min(raster.width, ends - begins > 3 * ratio ? ends - Math.floor(ratio) : ends)];
    const state = table.end[entry] <= time ? 2 : table.start[entry] <= time ? 1 : 0;
    const full = [inks.pale[entry], colors.packed.here, inks.full[entry]][state];
    if (kind === "solid") {
      line(raster, y, left, right, full);
    } else if (kind === "dashed") {
      for (let x = left; x < right; x++) if (((x - begins) / dash) % 2 < 1.34) raster.pixels[y * raster.width + x] = full;
    } else {
      line(raster, y, left, right, [colors.packed.bg, colors.paleHere, inks.pale[entry]][state]);
      line(raster, y, left, Math.min(right, left + Math.ceil(ratio)), full);
      if (right - left > 2 * ratio) line(raster, y, right - Math.ceil(ratio), right, full);
    }
  }
}

function text(scene, context, words, x, y, { align = "left", color = "muted", bold = false } = {}) {
  Object.assign(context, { fillStyle: css(scene.colors[color]), textAlign: align, textBaseline: "middle" });
  context.font = `${bold ? 600 : 400} 12px ${scene.font}`;
  context.fillText(words, x, y);
}

function drawAxes(scene, stage) {
  const { context } = stage.lanes;
  const { width, height } = stage.plot;
  const { clock, view, colors, ratio } = scene;
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  const step = tickStep((view.to - view.from) / clock.perUnit, Math.max(2, Math.floor(width / 90)));
  const digits = Math.max(0, Math.ceil(-Math.log10(step)));
  for (let tick = Math.ceil(view.from / clock.perUnit / step) * step; tick <= view.to / clock.perUnit; tick += step) {
    const x = xOf(scene, stage, tick * clock.perUnit);
    fill(context, css(colors.line), GUTTER + x, ABOVE + height, 1, 5);
    if (x > width - 84) continue;
    text(scene, context, format(tick, 0, digits), GUTTER + x, ABOVE + height + 14, { align: x < 12 ? "left" : "center" });
  }
  const end = view.to / clock.perUnit;
  const endDigits = Math.max(digits, 2 - Math.floor(Math.log10(end)), 0);
  const words = `${format(end, 0, endDigits)} ${clock.unit}`;
  text(scene, context, words, GUTTER + width, ABOVE + height + 14, { align: "right", color: "fg", bold: true });
  nameSms(scene, stage, context);
  context.setTransform(1, 0, 0, 1, 0, 0);
}

function tickStep(range, most) {
  const power = 10 ** Math.floor(Math.log10(range / most));
  return [1, 2, 5, 10].map((nice) => nice * power).find((step) => range / step <= most);
}

// Numbers of SMs where a lane has room for one; else, in the order of finishing, only which is first and last.
function nameSms(scene, stage, context) {
  const { table } = stage;
  const aLane = yOf(scene, stage, 1) - yOf(scene, stage, 0);
  const byNumber = scene.order === "id" || aLane >= 12;
  const every = Math.max(1, Math.ceil(14 / Math.max(0.01, aLane)));
  const idle = table.smCount - table.worked;
  for (const lane of byNumber ? stage.order.keys() : [idle, table.smCount - 1]) {
    if (byNumber && lane % every) continue;
    const y = (yOf(scene, stage, lane) + yOf(scene, stage, lane + 1)) / 2;
    if (y < 0 || y > stage.plot.height) continue;
    const words = byNumber ? `${aLane >= 12 ? "SM " : ""}${stage.order[lane]}` : ordinal(lane - idle + 1);
    text(scene, context, words, GUTTER - 6, ABOVE + clamp(y, 6, stage.plot.height - 6), { align: "right" });
  }
}

function drawOverLanes(scene, stage) {
  const { overContext: context, over } = stage.lanes;
  const { width, height } = stage.plot;
  context.setTransform(1, 0, 0, 1, 0, 0);
  context.clearRect(0, 0, over.width, over.height);
  context.setTransform(scene.ratio, 0, 0, scene.ratio, GUTTER * scene.ratio, ABOVE * scene.ratio);
  drawIdle(scene, stage, context);
  context.save();
  context.beginPath();
  context.rect(-2, -3, width + 4, height + 6);
  context.clip();
  if (scene.time < scene.blob.span) fill(context, css(scene.colors.here), xOf(scene, stage, scene.time) - 0.75, 0, 1.5, height);
  outline(scene, stage, context, entryIn(scene, stage, scene.selected), 2.5, "here");
  outline(scene, stage, context, entryIn(scene, stage, pointed(scene)), 2, "fg");
  context.restore();
}

// When the first SM was out of work, and how many never had any.
function drawIdle(scene, stage, context) {
  const { table, plot } = stage;
  const x = xOf(scene, stage, table.firstIdle);
  const tail = table.span - table.firstIdle;
  if (tail > 0 && x >= 0 && x <= plot.width) {
    fill(context, css(scene.colors.alpha), x - 0.5, -5, 1, plot.height + 5);
    const words = `tail ${roughly(scene.clock, tail)}${x > 190 ? ": SMs run out of work" : ""}`;
    const [place, align] = x > 90 ? [x - 6, "right"] : [x + 6, "left"];
    text(scene, context, words, place, -11, { align, color: "alpha", bold: true });
  }
  const idle = table.smCount - table.worked;
  if (idle && scene.order === "end") {
    const [top, bottom] = [Math.max(0, yOf(scene, stage, 0)), Math.min(plot.height, yOf(scene, stage, idle))];
    if (bottom - top < 18) return;
    const words = `${counted(idle, "SM")} idle`;
    context.font = `600 12px ${scene.font}`;
    const wide = context.measureText(words).width + 16;
    fill(context, css(scene.colors.bg), (plot.width - wide) / 2, (top + bottom) / 2 - 10, wide, 20);
    text(scene, context, words, plot.width / 2, (top + bottom) / 2, { align: "center", color: "alpha", bold: true });
  }
}

function outline(scene, stage, context, entry, width, color) {
  if (entry < 0) return;
  const { table } = stage;
  const lane = stage.laneOf[table.sm[entry]];
  const [top, bottom] = [yOf(scene, stage, lane), yOf(scene, stage, lane + 1)];
  const part = (bottom - top) / table.slots;
  const x = xOf(scene, stage, table.start[entry]);
  const wide = Math.max(3, xOf(scene, stage, table.end[entry]) - x);
  context.strokeStyle = css(scene.colors[color]);
  context.lineWidth = width;
  context.strokeRect(x - 1, top + part * table.slot[entry] - 1.5, wide + 1, Math.max(3, part) + 1.5);
}

function drawMap(scene, stage) {
  const { map, mapPlot, table, mapInks } = stage;
  const { time, colors, ratio } = scene;
  const raster = rasterOf(map, ...[mapPlot.width, mapPlot.height].map((px) => Math.max(1, Math.round(px * ratio))));
  raster.pixels.fill(colors.packed.bg);
  const columns = Array.from({ length: table.heads }, (_, head) => edges(head, table.heads, raster.width, ratio));
  for (let block = 0; block < table.blocks; block++) {
    const [top, bottom] = edges(block, table.blocks, raster.height, ratio);
    for (let head = 0; head < table.heads; head++) {
      const entry = table.cells[head * table.blocks + block];
      if (entry < 0) continue;
      const [left, right] = columns[head];
      const state = table.end[entry] <= time ? mapInks.full[entry] : table.start[entry] <= time ? colors.packed.here : colors.packed.track;
      line(raster, top, left, right, state);
    }
    for (let y = top + 1; y < bottom; y++) raster.pixels.copyWithin(y * raster.width, top * raster.width, (top + 1) * raster.width);
  }
  fill(map.context, css(colors.bg), 0, 0, map.canvas.width, map.canvas.height);
  map.context.putImageData(raster.image, Math.round(MAP_GUTTER * ratio), Math.round(ABOVE * ratio));
  nameMap(scene, stage);
}

// Where one of many equal cells begins and ends, in whole pixels, with a gap where there is room for one.
function edges(at, cells, pixels, ratio) {
  const [from, to] = [Math.floor((at * pixels) / cells), Math.floor(((at + 1) * pixels) / cells)];
  return [Math.min(from, pixels - 1), Math.max(from + 1, to - (to - from >= 3 * ratio ? Math.floor(ratio) : 0))];
}

function nameMap(scene, stage) {
  const { table, map, mapPlot } = stage;
  const { context } = map;
  context.setTransform(scene.ratio, 0, 0, scene.ratio, 0, 0);
  text(scene, context, table.heads > 1 ? "head 0" : "head 0 only", MAP_GUTTER, 10);
  if (table.heads > 2) text(scene, context, String(table.heads - 1), MAP_GUTTER + mapPlot.width, 10, { align: "right" });
  text(scene, context, table.wholeHeads ? "all" : "0", MAP_GUTTER - 5, ABOVE + 7, { align: "right" });
  if (table.blocks > 1) text(scene, context, count(table.blocks - 1), MAP_GUTTER - 5, ABOVE + mapPlot.height - 7, { align: "right" });
  context.setTransform(1, 0, 0, 1, 0, 0);
}

// The pointed one's cell, thinly those of all that its SM ran, and the selected one's.
function drawOverMap(scene, stage) {
  const { overContext: context, over } = stage.map;
  const { table } = stage;
  context.setTransform(1, 0, 0, 1, 0, 0);
  context.clearRect(0, 0, over.width, over.height);
  context.setTransform(scene.ratio, 0, 0, scene.ratio, MAP_GUTTER * scene.ratio, ABOVE * scene.ratio);
  const here = entryIn(scene, stage, pointed(scene));
  const beside = here >= 0 ? table.onSm[table.sm[here]] : [];
  if (beside.length <= MOST_OUTLINES) for (const entry of beside) outlineCell(scene, stage, context, entry, 1, "fg");
  outlineCell(scene, stage, context, entryIn(scene, stage, scene.selected), 2.5, "here");
  outlineCell(scene, stage, context, here, 2.5, "fg");
}

function outlineCell(scene, { table, mapPlot }, context, entry, width, color) {
  if (entry < 0) return;
  const [wide, high] = [mapPlot.width / table.heads, mapPlot.height / table.blocks];
  context.strokeStyle = css(scene.colors[color]);
  context.lineWidth = width;
  context.strokeRect(table.head[entry] * wide - 0.5, Math.max(0, table.block[entry]) * high - 0.5, Math.max(3, wide), Math.max(3, high));
}

// How many SMs were at work, over the whole run; after the first is out of work, what is lost shows through.
function drawStrip(scene, stage) {
  const { context, canvas } = stage.strip;
  const { table, plot } = stage;
  const { colors, ratio, blob } = scene;
  const columns = Math.round(plot.width * ratio);
  const height = STRIP_PX * ratio;
  context.setTransform(1, 0, 0, 1, 0, 0);
  fill(context, css(colors.bg), 0, 0, canvas.width, canvas.height);
  context.setTransform(1, 0, 0, 1, Math.round(GUTTER * ratio), 0);
  const at = (time) => (time / blob.span) * columns;
  fill(context, css(colors.track), 0, 0, at(table.span), height);
  fill(context, css(mixed(colors.bg, colors.alpha, 0.35)), at(table.firstIdle), 0, at(table.span) - at(table.firstIdle), height);
  const hollow = table.provenance === "modelled";
  const heights = Array.from({ length: columns }, (_, column) => {
    const [from, to] = [column, column + 1].map((one) => (one / columns) * blob.span);
    return ((workedUntil(table, to) - workedUntil(table, from)) / (to - from) / table.smCount) * height;
  });
  const color = css(hollow ? mixed(colors.bg, colors.busy, PALE) : colors.busy);
  heights.forEach((high, column) => fill(context, color, column, height - high, 1, high));
  if (hollow) drawDashedTop(context, heights.slice(0, at(table.span)), height, css(colors.busy), ratio);
  fill(context, css(colors.alpha), at(table.firstIdle) - ratio / 2, 0, ratio, height);
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  text(scene, context, count(table.smCount), GUTTER - 6, 7, { align: "right" });
  text(scene, context, "0", GUTTER - 6, STRIP_PX - 6, { align: "right" });
}

function drawDashedTop(context, heights, height, color, ratio) {
  context.beginPath();
  heights.forEach((high, column) => context.lineTo(column, height - high + ratio / 2));
  Object.assign(context, { strokeStyle: color, lineWidth: ratio });
  context.setLineDash([4 * ratio, 2 * ratio]);
  context.stroke();
  context.setLineDash([]);
}

// The part that the lanes show, and the time.
function drawOverStrip(scene, stage) {
  const { overContext: context, over } = stage.strip;
  const { view, blob, colors } = scene;
  context.setTransform(1, 0, 0, 1, 0, 0);
  context.clearRect(0, 0, over.width, over.height);
  context.setTransform(scene.ratio, 0, 0, scene.ratio, GUTTER * scene.ratio, 0);
  const at = (time) => (time / blob.span) * stage.plot.width;
  if (view.from > 0 || view.to < blob.span) {
    context.strokeStyle = css(colors.fg);
    context.lineWidth = 1.5;
    context.strokeRect(at(view.from), 0.75, at(view.to) - at(view.from), STRIP_PX);
  }
  if (scene.time < blob.span) fill(context, css(colors.here), at(scene.time) - 1, 0, 2, STRIP_PX);
}
