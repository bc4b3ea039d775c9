// The tile player: what a kernel stored of its online softmax, one tile a frame. canvas.js stands before it: no build.
// Two hosts use it: Streamlit calls the default export, an exported page calls mount(). The blob is made by payload.py.

const SPEEDS = [1, 2, 4, 8, 16, 30, 60];
const HIDDEN = 255;
const STEPS = 127;
const THUMB_PX = 16;
const OTHERS_TINT = 0.5;
const REPORT_AFTER_MS = 250;
const QUANTITIES = {
  scores: "S, scores",
  weights: "P, weights",
  beside: "S beside its exact value",
  errors: "S less its exact value",
};
const OUTPUTS = { held: "as the kernel holds it", returned: "divided by l" };
const ROW_PANELS = ["tile", "m", "alpha", "l", "out"];

// ---- Hosts

export default hosted(".fs-player-root", mount);

// say, where there is somebody to listen: called with {tile, row, speed, clicked} when the player rests somewhere else, and
// when another query block is chosen on the map; clicked is null or {block, at}, the last such choice and when it was made.
export function mount(root, bytes, say = null) {
  const player = { root, say, clicked: null };
  load(player, unpack(bytes), null);
  return {
    update: (newBytes, newSay) => update(player, newBytes, newSay),
    destroy: () => dismantle(player),
  };
}

function update(player, bytes, say) {
  player.say = say;
  const blob = unpack(bytes);
  if (blob.id === player.blob.id) {
    recolour(player);
    return;
  }
  // What was worth a look in one kind of inputs is not in another; two versions on the same are compared in one place.
  const same = blob.traces[0].inputs === player.blob.traces[0].inputs;
  const kept = { ...(same ? { tile: player.step, row: player.row } : blob.first), speed: player.speed };
  dismantle(player);
  load(player, blob, kept);
}

function load(player, blob, position) {
  const start = position ?? blob.start;
  const calm = matchMedia("(prefers-reduced-motion: reduce)").matches;
  Object.assign(player, { blob, calm, playing: false, frame: 0, dirty: true, hovered: null, quantity: "scores", output: "held" });
  player.steps = stepsOf(blob.traces);
  player.meet = blob.traces.every((trace) => trace.lastFirst === blob.traces[0].lastFirst);
  player.step = clamp(start.tile, 0, player.steps.length - 1);
  player.row = clamp(start.row, 0, blob.traces[0].blockM - 1);
  player.speed = SPEEDS.includes(start.speed) ? start.speed : 4;
  player.reported = JSON.stringify(positionOf(player));
  build(player);
  listen(player);
  recolour(player);
}

function dismantle(player) {
  cancelAnimationFrame(player.frame);
  clearTimeout(player.reporting);
  player.leaving.abort();
  player.resizing.disconnect();
  player.root.replaceChildren();
}

// ---- The blob

function unpack(bytes) {
  const blob = unpacked(bytes, "traces");
  for (const trace of blob.traces) {
    trace.grid = trace.map;
    Object.assign(trace, trace.arrays);
    trace.shares = sharesOf(trace);
    trace.firstTileOfColumn = firstTilesOf(trace);
  }
  return blob;
}

// What the player steps through: for each step the tile of every trace, -1 where that version never goes. Two that go through
// the keys in opposite directions meet in no tile but by chance: a step is then the next tile of each.
function stepsOf(traces) {
  if (traces.length === 1) return Array.from({ length: traces[0].tiles }, (_, tile) => [tile]);
  if (traces[0].lastFirst !== traces[1].lastFirst) {
    const length = Math.max(...traces.map((trace) => trace.tiles));
    return Array.from({ length }, (_, step) => traces.map((trace) => (step < trace.tiles ? step : -1)));
  }
  const keyBlocks = [...new Set(traces.flatMap((trace) => [...trace.keyBlocks]))].sort((a, b) => (traces[0].lastFirst ? b - a : a - b));
  return keyBlocks.map((block) => traces.map((trace) => trace.keyBlocks.indexOf(block)));
}

// The tile whose state a trace holds at a step: its own, or the last one before where it skips this step.
function heldTile(player, index, step) {
  for (let at = step; at >= 0; at--) if (player.steps[at][index] >= 0) return player.steps[at][index];
  return -1;
}

function sharesOf(trace) {
  return Float32Array.from({ length: trace.tiles }, (_, tile) => rescaledRows(trace, tile) / trace.blockM);
}

function rescaledRows(trace, tile) {
  let count = 0;
  for (let row = 0; row < trace.blockM; row++) if (isRescaled(trace, tile, row)) count++;
  return count;
}

function isRescaled(trace, tile, row) {
  return tile > 0 && trace.m[(tile - 1) * trace.blockM + row] > -Infinity && trace.alpha[tile * trace.blockM + row] < 1;
}

// For each column of the map the first stored tile in it or visited after it, so that a click there finds one.
function firstTilesOf(trace) {
  return Array.from({ length: trace.grid.columns }, (_, column) => {
    const found = trace.keyBlocks.findIndex((block) => {
      const of = Math.floor(block / trace.grid.group);
      return trace.lastFirst ? of <= column : of >= column;
    });
    return found < 0 ? trace.tiles - 1 : found;
  });
}

// All that the numbers and the sentence say of one row at one tile. before is false where the tile before was not stored.
function factsOf(trace, tile, row) {
  const at = tile * trace.blockM + row;
  const before = trace.every === 1;
  const mBefore = before && tile > 0 ? trace.m[at - trace.blockM] : -Infinity;
  const lBefore = before && tile > 0 ? trace.l[at - trace.blockM] : 0;
  const [m, l] = [trace.m[at], trace.l[at]];
  // The softmax's own factor. What v1 multiplies O by is this times l before and over l after.
  const alpha = before ? (m === -Infinity ? 0 : Math.exp(mBefore - m)) : trace.alpha[at];
  // By how much, in log2, this tile's largest score exceeds the m that it is measured against: only where m may lag.
  const ahead = trace.lagLog2 && trace.rowMax[at] > m ? (trace.rowMax[at] - m) / Math.LN2 : 0;
  return { before, mBefore, lBefore, m, l, alpha, added: l - alpha * lBefore, ahead };
}

function hiddenKeys(trace, tile, row) {
  const start = (tile * trace.blockM + row) * trace.blockN;
  let count = 0;
  for (let at = start; at < start + trace.blockN; at++) if (trace.scores[at] === HIDDEN) count++;
  return count;
}

// ---- Words

function sentenceOf(trace, tile, row) {
  const query = trace.queryBlock * trace.blockM + row;
  if (query >= trace.seqLenQ) return `Row ${query} lies past the last query: the kernel computes it and stores nothing of it.`;
  const facts = factsOf(trace, tile, row);
  if (facts.m === -Infinity) return "This row sees no key yet: m stays −∞, l stays 0, and there is nothing to rescale.";
  const hidden = hiddenKeys(trace, tile, row);
  if (hidden === trace.blockN) return "Every key of this tile is hidden from this row: nothing changes.";
  const said = [whatHappened(trace, facts), multipliedWords(trace, tile, row, facts), hiddenWords(trace, hidden)];
  return [...said, outputWords(trace, tile, facts)].filter(Boolean).join(" ");
}

function whatHappened(trace, facts) {
  if (!facts.before) return `Of ${trace.visited} tiles each ${ordinal(trace.every)} is stored: m and l have come this far.`;
  if (facts.mBefore === -Infinity) return "The first keys that this row sees: m and l begin here, and there is nothing to rescale yet.";
  if (trace.lagLog2) return whatLagged(trace, facts);
  if (facts.m > facts.mBefore) {
    return `New maximum: everything accumulated so far shrinks by the factor α = ${factor(facts.alpha)}.`;
  }
  return "Maximum unchanged: nothing to rescale (α = 1).";
}

// Where m may lag: moved because a row of the warp was too far ahead, or kept though a larger score came.
function whatLagged(trace, facts) {
  const most = `2^${trace.lagLog2}`;
  if (facts.m > facts.mBefore) {
    return `A row of this warp is more than ${most} ahead of its m, so its rows take their maxima: everything accumulated so far shrinks by the factor α = ${factor(facts.alpha)}.`;
  }
  if (facts.ahead > 0) {
    return `A larger score came, 2^${facts.ahead.toFixed(1)} ahead, but ${trace.label} lets m lag by up to ${most}: m stays, nothing is rescaled (α = 1), and weights here reach 2^${facts.ahead.toFixed(1)}.`;
  }
  return "No larger score: m stays, nothing to rescale (α = 1).";
}

// Rows that did not move are multiplied by 1 where their warp moved, and in a tile with a mask.
function multipliedWords(trace, tile, row, facts) {
  const one = trace.lagLog2 && facts.alpha === 1 && trace.multiplied[tile * trace.blockM + row];
  return one ? "O is multiplied by 1 all the same: its warp moved, or the tile has a mask." : "";
}

function hiddenWords(trace, hidden) {
  return hidden ? `${hidden} of the tile’s ${trace.blockN} keys are hidden from this row.` : "";
}

function outputWords(trace, tile, facts) {
  if (trace.normalised) {
    if (!facts.before || facts.mBefore === -Infinity) return `${trace.label} keeps O normalised: it is divided by l at every tile.`;
    const multiplied = (facts.alpha * facts.lBefore) / facts.l;
    return `${trace.label} normalises O again at every tile: it is multiplied by α · l before ÷ l after = ${factor(multiplied)}.`;
  }
  if (tile === trace.tiles - 1) return "This was the last tile: O is divided by l now, once.";
  return "O stays unnormalised until the last tile.";
}

function ordinal(count) {
  return count === 2 ? "2nd" : count === 3 ? "3rd" : `${count}th`;
}

function signed(text) {
  return text.replace("-", "−");
}

function number(value) {
  if (!Number.isFinite(value)) return value < 0 ? "−∞" : "∞";
  return signed(value.toFixed(3));
}

// Four digits, so that the product it stands in can be checked by hand.
function factor(value) {
  if (value === 0 || value === 1) return String(value);
  if (value > 0.99995) return "0.9999…";
  return value < 1e-4 ? signed(value.toExponential(2)) : value.toPrecision(4);
}

function short(value) {
  return signed(Number(value.toPrecision(3)).toString());
}

// ---- The document

function build(player) {
  const label = "Tile player. Space plays, left and right step, up and down choose the row.";
  player.box = element("div", { class: "fs-canvas fs-player", tabindex: "0", role: "group", "aria-label": label });
  player.stages = player.blob.traces.map((trace, index) => buildStage(trace, index));
  player.box.append(buildControls(player), ...player.stages.map((stage) => stage.box), buildScrubber(player), buildHint(player));
  player.root.replaceChildren(player.box);
}

function buildControls(player) {
  const button = (name, words) => {
    const made = element("button", { type: "button", "data-does": name, "aria-label": words, title: words }, icon(name));
    return made;
  };
  player.play = button("play", "Play");
  player.play.classList.add("main");
  if (player.calm) {
    player.play.disabled = true;
    player.play.title = "Your system asks for less motion: step instead.";
  }
  player.where = element("output", { "data-name": "where", "aria-live": "off", class: "where" });
  player.speedBox = select("Speed", SPEEDS.map((speed) => [speed, `${speed} ${speed === 1 ? "tile" : "tiles"} a second`]), player.speed);
  return element(
    "div", { class: "controls" },
    element("div", { class: "buttons" }, button("first", "First tile"), button("previous", "Tile before"), player.play,
      button("next", "Next tile"), button("last", "Last tile")),
    ...[player.speedBox, ...buildChoices(player)].map((found) => found.parentElement),
    player.where,
  );
}

function buildChoices(player) {
  const traces = player.blob.traces;
  const quantities = Object.entries(QUANTITIES).filter(([name]) => !["beside", "errors"].includes(name) || traces.some((trace) => trace.errors));
  player.quantityBox = select("Tile shows", quantities, player.quantity);
  if (traces.every((trace) => trace.normalised)) return [player.quantityBox];
  player.outputBox = select("O shown", Object.entries(OUTPUTS), player.output);
  return [player.quantityBox, player.outputBox];
}

function buildStage(trace, index) {
  const stage = { trace, index, panels: {}, shown: {} };
  const add = (name, title, about) => (stage.panels[name] = buildPanel(name, title, about)).box;
  const bars = element(
    "div", { class: "bars" },
    add("m", "3 Max m", trace.lagLog2 ? `lags ≤ 2^${trace.lagLog2}` : "max(m, S)"), add("alpha", "4 Scale α", "e^(old m − m)"), add("l", "5 Sum l", "α · l + ΣP"),
  );
  stage.panelBox = element("div", { class: "panels" }, add("map", "1 Where we are", ""), add("tile", "2 Scores S", ""), bars,
    add("out", "6 Output O so far", ""));
  stage.panels.map.foot.append(buildMapLegend(trace));
  stage.absent = element("p", { class: "absent", hidden: "" }, "not visited");
  stage.panels.tile.holder.append(stage.absent);
  stage.sum = buildSum();
  stage.said = element("p", { class: "said", "aria-live": "polite" });
  stage.box = element("section", { class: "stage", "aria-label": `${trace.title}, tile by tile` },
    buildStageTitle(trace), stage.panelBox, element("div", { class: "words" }, stage.sum.box, stage.said));
  return stage;
}

function buildStageTitle(trace) {
  const shared = trace.kvHead === null ? "" : `, reads KV head ${trace.kvHead}`;
  const about = [`head ${trace.head}${shared}`, `query block ${trace.queryBlock} of ${trace.queryBlocks}`, `tiles of ${trace.blockM} × ${trace.blockN}`];
  if (trace.batches > 1) about.unshift(`batch entry ${trace.batch}`);
  if (trace.inputs !== "normal") about.push(`${trace.inputs} inputs`);
  if (trace.every > 1) about.push(`each ${ordinal(trace.every)} of ${trace.visited} tiles stored`);
  return element("header", {}, element("strong", {}, trace.label), element("span", { class: "about" }, about.join(" · ")), badge(trace));
}

function buildPanel(name, title, about) {
  const canvas = element("canvas", { role: "img", "aria-label": title, "data-panel": name });
  const panel = { name, canvas, context: canvas.getContext("2d"), heat: null };
  panel.title = element("b", {}, title);
  panel.about = element("span", {}, about);
  panel.frame = element("div", { class: "frame", hidden: "" });
  panel.holder = element("div", { class: "holder" }, canvas, panel.frame);
  panel.foot = element("div", { class: "foot" });
  panel.box = element("figure", { class: `panel ${name}` }, element("figcaption", {}, panel.title, panel.about), panel.holder, panel.foot);
  if (name !== "map") panel.scale = buildScale(panel, name);
  return panel;
}

function buildScale(panel, name) {
  const scale = { low: element("span"), ramp: element("i", { class: "ramp", "aria-hidden": "true" }), high: element("span") };
  panel.foot.append(scale.low, ...(["tile", "out"].includes(name) ? [scale.ramp] : []), scale.high);
  return scale;
}

function buildMapLegend(trace) {
  const entry = (kind, words) => element("li", {}, element("i", { class: kind, "aria-hidden": "true" }), words);
  const entries = [entry("here", "this tile"), entry("done", "done, this block"), entry("pending", "still to come"),
    ...(trace.onlyOwn ? [] : [entry("others", "other blocks: share of rows with a new maximum")])];
  if (trace.map.includes(-1)) entries.push(entry("never", trace.causal ? "never visited: all of it hidden" : "never visited"));
  return element("ul", { class: "legend" }, ...entries);
}

// row 326   m 1.471 → 3.932   α = e^(1.471 − 3.932) = 0.085   l = 0.085 × 17.546 + 13.027 = 14.524
function buildSum() {
  const names = ["row", "mBefore", "exponent", "alphaAgain", "lBefore", "added"];
  const sum = Object.fromEntries(names.map((name) => [name, element("span")]));
  for (const name of ["m", "alpha", "l"]) sum[name] = element("output", { "data-name": name, "aria-live": "off" });
  sum.exponent = element("sup");
  sum.mPart = element("span", { class: "m" }, "m ", sum.mBefore, sum.m);
  sum.alphaPart = element("span", { class: "alpha" }, "α = ", sum.power = element("span", {}, "e", sum.exponent, " = "), sum.alpha);
  sum.lPart = element("span", { class: "l" }, "l = ", sum.product = element("span", {}, sum.alphaAgain, " × ", sum.lBefore, " + ", sum.added, " = "), sum.l);
  sum.row.className = "row";
  sum.scales = element("span", { class: "scales" });
  sum.box = element("p", { class: "sum" }, sum.row, sum.mPart, sum.alphaPart, sum.lPart, sum.scales);
  return sum;
}

function buildScrubber(player) {
  const last = player.steps.length - 1;
  player.slider = element("input", { type: "range", min: 0, max: last, step: 1, "aria-label": "Tile" });
  for (const stage of player.stages) {
    stage.strip = element("canvas", { class: "strip", role: "img", "aria-label": "Share of rows rescaled, per tile" });
  }
  const words = (stage) => (player.stages.length > 1 ? `${stage.trace.label}: share of rows rescaled, per tile` : "Share of rows rescaled, per tile");
  const strips = player.stages.flatMap((stage) => [element("span", { class: "strip-title" }, words(stage)), stage.strip]);
  return element("div", { class: "scrubber" }, ...strips, player.slider);
}

function buildHint(player) {
  const play = player.calm ? "Your system asks for less motion, so nothing plays by itself." : "Space plays and pauses.";
  return element("p", { class: "hint" }, `${play} ← → step, Home and End go to the ends, [ ] change the speed, ↑ ↓ or a click choose the row.`);
}

// ---- Colours

function recolour(player) {
  setTheme(player.box);
  const colors = colorsOf(player.box, ["bg", "fg", "line", "track", "m", "alpha", "l", "here", "ramp-end", "zero"]);
  colors.diverging = ramp([[0, colors.m], [0.5, colors.zero], [1, colors.alpha]]);
  colors.sequential = ramp([[0, colors.zero], [0.55, colors.m], [1, colors["ramp-end"]]]);
  colors.hidden = packed(colors.track);
  colors.ink = { m: css(colors.m), alpha: css(colors.alpha), l: css(colors.l), here: css(colors.here),
    paleHere: css(mixed(colors.bg, colors.here, 0.4)), paleAlpha: css(mixed(colors.bg, colors.alpha, 0.28)), paleL: css(mixed(colors.bg, colors.l, 0.4)) };
  player.colors = colors;
  measure(player);
}

// ---- Sizes

// Panels 2 to 6 share their height, so that a row of one is a row of all. Wide: all in a line. Narrow: they wrap.
function measure(player) {
  const width = player.box.clientWidth;
  if (!width) return;
  const sizes = width >= 880 ? wideSizes(width, player.stages.length > 1 ? 384 : 448) : narrowSizes(width);
  player.box.classList.toggle("wide", width >= 880);
  for (const name of ["map", "tile", "bar", "gap"]) player.box.style.setProperty(`--${name}-px`, `${sizes[name]}px`);
  for (const stage of player.stages) sizePanels(stage, sizes, width);
  player.dirty = true;
  draw(player);
}

function wideSizes(width, largest) {
  const smallestGap = 22;
  const tile = clamp(snapped((width - 5 * smallestGap - 3 * 80) / 2.66), 192, largest);
  const map = Math.floor(tile * 0.66);
  const bar = clamp(Math.floor((width - map - 2 * tile - 5 * smallestGap) / 3), 60, 150);
  const gap = clamp(Math.floor((width - map - 2 * tile - 3 * bar) / 5), smallestGap, 72);
  return { tile, map, bar, gap };
}

function narrowSizes(width) {
  const gap = 20;
  const tile = Math.max(160, snapped(Math.min(448, width >= 560 ? (width - gap) / 2 : width)));
  return { tile, gap, map: Math.floor(width >= 560 ? tile * 0.8 : Math.min(tile, 260)), bar: Math.floor((tile - 2 * 14) / 3) };
}

// A multiple of 32 lets the cells of a usual tile be equally large.
function snapped(px) {
  return Math.floor(px / 32) * 32;
}

function sizePanels(stage, { map, tile, bar }, width) {
  const { rows, columns } = stage.trace.grid;
  const mapHeight = clamp(Math.round((map * rows) / columns), Math.min(24, map), map);
  sizeCanvas(stage.panels.map.canvas, map, mapHeight);
  for (const name of ROW_PANELS) sizeCanvas(stage.panels[name].canvas, ["tile", "out"].includes(name) ? tile : bar, tile);
  sizeCanvas(stage.strip, width, 30);
  stage.mapLayers = null;
  stage.stripLayers = null;
  stage.shown = {};
}

// ---- Drawing: each panel only when what it shows has changed

function draw(player) {
  player.dirty = false;
  for (const stage of player.stages) drawStage(player, stage);
  const text = `tile ${player.step + 1} of ${player.steps.length}`;
  const block = player.meet ? keyBlockAt(player) : blocksAt(player).join(" beside ");
  write(player.where, `${text} · key block ${block}`);
  player.slider.value = player.step;
  player.slider.setAttribute("aria-valuetext", `${text}, key block ${block}`);
}

function blocksAt(player) {
  return player.blob.traces.map((trace, index) => trace.keyBlocks[heldTile(player, index, player.step)]);
}

function keyBlockAt(player) {
  const tiles = player.steps[player.step];
  const index = tiles.findIndex((tile) => tile >= 0);
  return player.blob.traces[index].keyBlocks[tiles[index]];
}

// Where a version is while the other goes on: at the other's key block, or at its own last one when they meet in none.
function restingBlock(player, trace, held) {
  return player.meet || held < 0 ? keyBlockAt(player) : trace.keyBlocks[held];
}

function drawStage(player, stage) {
  const tile = player.steps[player.step][stage.index];
  const held = tile >= 0 ? tile : heldTile(player, stage.index, player.step);
  const row = player.hovered ?? player.row;
  const key = { map: `${tile}/${held}/${player.step}`, tile: `${tile}/${player.quantity}`, m: `${tile}/${held}`, out: `${held}/${player.output}` };
  if (changed(stage, "map", key.map)) drawMap(player, stage, tile, held);
  if (changed(stage, "tile", key.tile)) drawTile(player, stage, tile);
  if (changed(stage, "m", key.m)) drawBars(player, stage, tile, held);
  if (changed(stage, "out", key.out)) drawOutput(player, stage, held);
  if (changed(stage, "strip", player.step)) drawStrip(player, stage);
  if (changed(stage, "row", `${row}/${player.box.className}`)) placeFrames(player, stage, row);
  if (changed(stage, "words", `${tile}/${held}/${row}`)) writeWords(player, stage, tile, held, row);
}

function drawMap(player, stage, tile, held) {
  const { trace } = stage;
  const { canvas, context } = stage.panels.map;
  stage.mapLayers ??= { pending: mapLayer(player, stage, false), done: mapLayer(player, stage, true) };
  const block = tile >= 0 ? trace.keyBlocks[tile] : restingBlock(player, trace, held);
  const cell = ownCell(stage, canvas, Math.floor(block / trace.grid.group));
  context.drawImage(stage.mapLayers.pending, 0, 0);
  const [from, width] = trace.lastFirst ? [cell.x + cell.width, canvas.width - cell.x - cell.width] : [0, cell.x];
  if (width >= 1) context.drawImage(stage.mapLayers.done, from, 0, width, canvas.height, from, 0, width, canvas.height);
  drawCurrent(player, context, cell, tile);
  write(stage.panels.map.about, `query block ${trace.queryBlock} × key block ${block}`);
  const share = tile >= 0 ? `${Math.round(trace.shares[tile] * 100)} % of its rows are rescaled` : "not visited";
  canvas.setAttribute("aria-label", `Map of ${trace.queryBlocks} query blocks by ${trace.keyBlocksInAll} key blocks; now key block ${block}, ${share}`);
}

// The whole map with the traced block's tiles either all still to come or all done: a step copies from both.
function mapLayer(player, stage, done) {
  const { colors } = player;
  const { rows, columns } = stage.trace.grid;
  const layer = sizedLike(stage.panels.map.canvas);
  const context = layer.getContext("2d");
  fill(context, css(colors.bg), 0, 0, layer.width, layer.height);
  for (let row = 0; row < rows; row++) {
    for (let column = 0; column < columns; column++) {
      drawCell(context, cellOf(layer, rows, columns, row, column), mapColor(player, stage.trace, row, column), colors);
    }
  }
  const own = stage.trace.grid.own;
  for (let column = 0; column < columns; column++) {
    const went = stage.trace.map[own * columns + column] >= 0;
    const color = done ? colors.m : mixed(colors.bg, colors.m, 0.3);
    if (went) drawCell(context, ownCell(stage, layer, column), color, colors);
  }
  return layer;
}

function mapColor(player, trace, row, column) {
  const share = trace.map[row * trace.grid.columns + column] / trace.blockM;
  return share < 0 ? null : mixed(player.colors.track, player.colors.alpha, OTHERS_TINT * share);
}

function sizedLike(canvas) {
  return Object.assign(document.createElement("canvas"), { width: canvas.width, height: canvas.height });
}

function cellOf(canvas, rows, columns, row, column) {
  const [x, y] = [(canvas.width * column) / columns, (canvas.height * row) / rows];
  const [width, height] = [canvas.width / columns, canvas.height / rows];
  const gap = Math.min(width, height) >= 7 ? devicePixelRatio : 0;
  return { x, y, width: width - gap, height: height - gap, gap };
}

// Among very many blocks the traced row would be a hair: it gets at least three pixels.
function ownCell(stage, canvas, column) {
  const { rows, columns } = stage.trace.grid;
  const cell = cellOf(canvas, rows, columns, stage.trace.grid.own, column);
  const height = Math.max(cell.height, 3 * devicePixelRatio);
  return { ...cell, y: Math.min(cell.y, canvas.height - height), height, width: Math.max(cell.width, 1) };
}

// A null colour is a place where the kernel never went: a stroke where there is room for one.
function drawCell(context, { x, y, width, height, gap }, color, colors) {
  if (color) fill(context, css(color), x, y, width, height);
  else if (gap) {
    context.strokeStyle = css(mixed(colors.line, colors.fg, 0.15));
    context.lineWidth = devicePixelRatio;
    context.beginPath();
    context.moveTo(x + width * 0.3, y + height * 0.7);
    context.lineTo(x + width * 0.7, y + height * 0.3);
    context.stroke();
  }
}

function drawCurrent(player, context, cell, tile) {
  const color = css(player.colors.here);
  if (tile >= 0) {
    fill(context, color, cell.x, cell.y, Math.max(cell.width, 2 * devicePixelRatio), cell.height);
    return;
  }
  context.strokeStyle = color;
  context.lineWidth = 1.5 * devicePixelRatio;
  context.strokeRect(cell.x + 1, cell.y + 1, cell.width - 2, cell.height - 2);
}

function drawTile(player, stage, tile) {
  const { trace } = stage;
  const panel = stage.panels.tile;
  const quantity = trace.errors || !["beside", "errors"].includes(player.quantity) ? player.quantity : "scores";
  stage.absent.hidden = tile >= 0;
  if (tile < 0) {
    panel.context.clearRect(0, 0, panel.canvas.width, panel.canvas.height);
    write(panel.about, `${trace.label} never comes here`);
    return;
  }
  const painters = { scores: paintScores, weights: paintWeights, beside: paintBeside, errors: paintErrors };
  painters[quantity](player, trace, panel, tile);
  nameTile(player, trace, panel, tile, quantity);
}

function nameTile(player, trace, panel, tile, quantity) {
  const { colors } = player;
  const [firstRow, firstKey] = [trace.queryBlock * trace.blockM, trace.keyBlocks[tile] * trace.blockN];
  const titles = { scores: "2 Scores S", weights: "2 Weights P", beside: "2 S in FP8 | exact", errors: "2 Error of S in FP8" };
  write(panel.title, titles[quantity]);
  const range = (first, count) => `${first}–${first + count - 1}`;
  write(panel.about, `queries ${range(firstRow, trace.blockM)} × keys ${range(firstKey, trace.blockN)}`);
  panel.canvas.setAttribute("aria-label", `${titles[quantity].slice(2)}: ${panel.about.textContent}`);
  const limit = trace.limits[quantity === "errors" ? "errors" : "scores"];
  const root = powerOfWeights(trace) < 0.5 ? "∜" : "√";
  if (quantity === "weights") label(panel.scale, "0", `${short(trace.limits.weight)}, ${root} scale`, colors.sequential);
  else label(panel.scale, `−${short(limit)}`, short(limit), colors.diverging);
}

function label(scale, low, high, table) {
  write(scale.low, low);
  write(scale.high, high);
  if (table && scale.ramp.style.background !== table.gradient) scale.ramp.style.background = table.gradient;
}

// The colours of the 256 bytes of one tile, whose limit is its own, on the scale of the whole trace.
function colorsOfBytes(player, tileLimit, limit) {
  const { diverging, hidden } = player.colors;
  const table = Uint32Array.from({ length: 256 }, (_, byte) => diverging[place((byte / STEPS - 1) * (tileLimit / limit))]);
  table[HIDDEN] = hidden;
  return table;
}

// -1 to 1 as an index of a table of 256 colours.
function place(value) {
  return clamp(Math.round(127.5 + 127.5 * value), 0, 255);
}

function paintScores(player, trace, panel, tile) {
  const table = colorsOfBytes(player, trace.scoresLimits[tile], trace.limits.scores);
  const start = tile * trace.blockM * trace.blockN;
  paint(panel, trace.blockN, trace.blockM, (pixels) => {
    for (let at = 0; at < pixels.length; at++) pixels[at] = table[trace.scores[start + at]];
  });
}

// P = e^(S − m), from the stored S and m; above 1 where m lags. Its square root is the index, so that small weights are seen, or its
// fourth root where the largest is far above 1.
function paintWeights(player, trace, panel, tile) {
  const { sequential, hidden } = player.colors;
  const { blockM, blockN, scores } = trace;
  const limit = trace.scoresLimits[tile];
  const power = powerOfWeights(trace);
  const unit = trace.limits.weight ** power;
  paint(panel, blockN, blockM, (pixels) => {
    for (let row = 0, at = 0; row < blockM; row++) {
      const m = trace.m[tile * blockM + row];
      for (let column = 0; column < blockN; column++, at++) {
        const byte = scores[tile * blockM * blockN + at];
        const root = byte === HIDDEN ? 0 : Math.exp(((byte / STEPS - 1) * limit - m) * power) / unit;
        pixels[at] = byte === HIDDEN ? hidden : sequential[Math.min(255, Math.round(root * 255))];
      }
    }
  });
}

function powerOfWeights(trace) {
  return trace.limits.weight > 4 ? 0.25 : 0.5;
}

function paintErrors(player, trace, panel, tile) {
  const table = colorsOfBytes(player, trace.errorsLimits[tile], trace.limits.errors);
  const start = tile * trace.blockM * trace.blockN;
  paint(panel, trace.blockN, trace.blockM, (pixels) => {
    for (let at = 0; at < pixels.length; at++) pixels[at] = table[trace.errors[start + at]];
  });
}

// The quantised tile at the left, the exact one at the right, two empty columns between them.
function paintBeside(player, trace, panel, tile) {
  const { diverging, hidden } = player.colors;
  const { blockM, blockN, scores, errors } = trace;
  const [scoreLimit, errorLimit] = [trace.scoresLimits[tile] / trace.limits.scores, trace.errorsLimits[tile] / trace.limits.scores];
  const width = 2 * blockN + 2;
  paint(panel, width, blockM, (pixels) => {
    for (let row = 0; row < blockM; row++) {
      for (let column = 0; column < blockN; column++) {
        const at = (tile * blockM + row) * blockN + column;
        const score = (scores[at] / STEPS - 1) * scoreLimit;
        const exact = score - (errors[at] / STEPS - 1) * errorLimit;
        const seen = scores[at] !== HIDDEN;
        pixels[row * width + column] = seen ? diverging[place(score)] : hidden;
        pixels[row * width + blockN + 2 + column] = seen ? diverging[place(exact)] : hidden;
      }
      pixels[row * width + blockN] = pixels[row * width + blockN + 1] = 0;
    }
  });
}

// One pixel a cell into a small canvas, which is then drawn large.
function paint(panel, columns, rows, write) {
  if (panel.heat?.image.width !== columns || panel.heat.image.height !== rows) panel.heat = newHeat(columns, rows);
  const { small, image, pixels } = panel.heat;
  write(pixels);
  small.getContext("2d").putImageData(image, 0, 0);
  panel.context.imageSmoothingEnabled = false;
  panel.context.clearRect(0, 0, panel.canvas.width, panel.canvas.height);
  panel.context.drawImage(small, 0, 0, panel.canvas.width, panel.canvas.height);
}

function newHeat(columns, rows) {
  const image = new ImageData(columns, rows);
  const small = Object.assign(document.createElement("canvas"), { width: columns, height: rows });
  return { small, image, pixels: new Uint32Array(image.data.buffer) };
}

function drawOutput(player, stage, held) {
  const { trace } = stage;
  const panel = stage.panels.out;
  const divided = !trace.normalised && player.output === "returned";
  const limit = divided ? trace.limits.out : trace.limits.acc;
  const about = trace.normalised ? "divided by l at every tile" : divided ? "as if it were returned now" : "α · O + P·V, not divided by l";
  write(panel.about, about);
  label(panel.scale, `−${short(limit)}`, short(limit), player.colors.diverging);
  panel.canvas.setAttribute("aria-label", `Output O of this query block, ${about}`);
  if (held < 0) panel.context.clearRect(0, 0, panel.canvas.width, panel.canvas.height);
  else if (divided) paintReturned(player, trace, panel, held);
  else paintHeld(player, trace, panel, held);
}

function paintHeld(player, trace, panel, tile) {
  const table = colorsOfBytes(player, trace.accLimits[tile], trace.limits.acc);
  const start = tile * trace.blockM * trace.headDim;
  paint(panel, trace.headDim, trace.blockM, (pixels) => {
    for (let at = 0; at < pixels.length; at++) pixels[at] = table[trace.acc[start + at]];
  });
}

function paintReturned(player, trace, panel, tile) {
  const { diverging } = player.colors;
  const { blockM, headDim } = trace;
  paint(panel, headDim, blockM, (pixels) => {
    for (let row = 0, at = 0; row < blockM; row++) {
      const share = trace.accLimits[tile] / (trace.l[tile * blockM + row] || 1) / trace.limits.out;
      for (let column = 0; column < headDim; column++, at++) {
        pixels[at] = diverging[place((trace.acc[tile * blockM * headDim + at] / STEPS - 1) * share)];
      }
    }
  });
}

function drawBars(player, stage, tile, held) {
  const { trace } = stage;
  const [mLow, mHigh] = trace.range.m;
  const mPlace = (m) => (m === -Infinity ? 0 : Math.max(0.02, (m - mLow) / (mHigh - mLow || 1)));
  const lPlace = (l) => l / (trace.range.l[1] || 1);
  for (const name of ["m", "alpha", "l"]) {
    const { context, canvas } = stage.panels[name];
    context.clearRect(0, 0, canvas.width, canvas.height);
  }
  label(stage.panels.m.scale, number(mLow).slice(0, -2), number(mHigh).slice(0, -2));
  label(stage.panels.alpha.scale, "0", "1");
  label(stage.panels.l.scale, "0", short(trace.range.l[1]));
  if (held < 0) return;
  for (let row = 0; row < trace.blockM; row++) drawRow(stage, player.colors.ink, tile, held, row, mPlace, lPlace);
}

// m: what it was, in amber what this tile added, and pale how far a larger score is ahead of an m that was kept. α: strong where it shrinks something. l: what was kept, and what came.
function drawRow(stage, ink, tile, held, row, mPlace, lPlace) {
  const { trace, panels } = stage;
  const facts = factsOf(trace, held, row);
  const here = tile >= 0;
  const mOld = here && facts.before ? mPlace(facts.mBefore) : mPlace(facts.m);
  if (here && facts.ahead > 0) bar(panels.m, trace.blockM, row, mPlace(trace.rowMax[held * trace.blockM + row]), ink.paleHere);
  if (mPlace(facts.m) > mOld) bar(panels.m, trace.blockM, row, mPlace(facts.m), ink.here);
  bar(panels.m, trace.blockM, row, mOld, ink.m);
  if (here && (facts.mBefore > -Infinity || !facts.before)) {
    bar(panels.alpha, trace.blockM, row, facts.alpha, facts.alpha < 1 ? ink.alpha : ink.paleAlpha);
  }
  const kept = here && facts.before ? facts.alpha * facts.lBefore : facts.l;
  bar(panels.l, trace.blockM, row, lPlace(facts.l), ink.paleL);
  bar(panels.l, trace.blockM, row, lPlace(kept), ink.l);
}

function bar(panel, rows, row, share, color) {
  const { canvas, context } = panel;
  const [top, bottom] = [Math.round((canvas.height * row) / rows), Math.round((canvas.height * (row + 1)) / rows)];
  const gap = bottom - top >= 4 ? 1 : 0;
  if (share > 0) fill(context, color, 0, top, share * canvas.width, bottom - top - gap);
}

// Two layers, so that a step is two copies however many tiles there are.
function drawStrip(player, stage) {
  const { colors, step } = player;
  const context = stage.strip.getContext("2d");
  const { width, height } = stage.strip;
  stage.stripLayers ??= {
    done: stripLayer(player, stage, colors.ink.alpha),
    pending: stripLayer(player, stage, css(mixed(colors.bg, colors.alpha, 0.35))),
  };
  const { x, barWidth } = stripBar(player, stage.strip, step);
  context.clearRect(0, 0, width, height);
  context.drawImage(stage.stripLayers.pending, 0, 0);
  if (x > 0) context.drawImage(stage.stripLayers.done, 0, 0, x, height, 0, 0, x, height);
  fill(context, colors.ink.here, x, ...stripHeight(stage, player.steps[step][stage.index], height, barWidth));
}

function stripLayer(player, stage, color) {
  const layer = sizedLike(stage.strip);
  const context = layer.getContext("2d");
  player.steps.forEach((tiles, step) => {
    const { x, barWidth } = stripBar(player, layer, step);
    fill(context, color, x, ...stripHeight(stage, tiles[stage.index], layer.height, barWidth));
  });
  return layer;
}

// Centred over the slider's thumb at that step.
function stripBar(player, canvas, step) {
  const ratio = devicePixelRatio || 1;
  const pitch = (canvas.width - THUMB_PX * ratio) / Math.max(1, player.steps.length - 1);
  const barWidth = clamp(pitch * 0.8, 1, THUMB_PX * ratio);
  return { x: (THUMB_PX / 2) * ratio + step * pitch - barWidth / 2, barWidth };
}

function stripHeight(stage, tile, height, barWidth) {
  const bar = tile < 0 ? 0 : Math.max(1.5 * devicePixelRatio, stage.trace.shares[tile] * height);
  return [height - bar, barWidth, bar];
}

function placeFrames(player, stage, row) {
  const height = parseFloat(stage.panels.tile.canvas.style.height) / stage.trace.blockM;
  for (const name of ROW_PANELS) {
    const { frame } = stage.panels[name];
    frame.hidden = row >= stage.trace.blockM;
    frame.style.top = `${row * height - 2}px`;
    frame.style.height = `${height + 4}px`;
  }
}

function writeWords(player, stage, tile, held, row) {
  const { trace, sum } = stage;
  write(sum.row, `row ${trace.queryBlock * trace.blockM + row}`);
  if (held >= 0) writeSum(sum, factsOf(trace, held, row), tile >= 0);
  write(sum.scales, tile >= 0 && trace.qScale ? scaleWords(trace, tile, row) : "");
  sum.box.classList.toggle("resting", tile < 0);
  stage.said.setAttribute("aria-live", player.playing ? "off" : "polite");
  const skipped = held === trace.tiles - 1
    ? `${trace.label} never visits this tile: it is done, and this is what it holds.`
    : `${trace.label} has not stored this tile: this is what it held before.`;
  write(stage.said, tile >= 0 ? sentenceOf(trace, tile, row) : skipped);
}

// FP8: what a stored number of this query, and of this tile's keys, is multiplied by.
function scaleWords(trace, tile, row) {
  const [low, high] = [trace.kScales[2 * tile], trace.kScales[2 * tile + 1]].map(short);
  return `scales: query ${short(trace.qScale[row])}, keys ${low === high ? low : `${low} to ${high}`}`;
}

function writeSum(sum, facts, here) {
  const full = here && facts.before && facts.m > -Infinity;
  write(sum.mBefore, here && facts.before ? `${number(facts.mBefore)} → ` : "");
  write(sum.m, number(facts.m));
  sum.alphaPart.hidden = !here || facts.m === -Infinity;
  sum.power.hidden = !full;
  sum.product.hidden = !full;
  write(sum.exponent, `${number(facts.mBefore)} − ${facts.m < 0 ? `(${number(facts.m)})` : number(facts.m)}`);
  write(sum.alpha, factor(facts.alpha));
  write(sum.alphaAgain, factor(facts.alpha));
  write(sum.lBefore, number(facts.lBefore));
  write(sum.added, number(Math.max(0, facts.added)));
  write(sum.l, number(facts.l));
}

// ---- Time and hands

function go(player, step) {
  player.step = clamp(step, 0, player.steps.length - 1);
  refresh(player);
}

// One frame for everything that changed since the last one; while playing, frames follow one another.
function refresh(player) {
  player.dirty = true;
  if (!player.frame) player.frame = requestAnimationFrame((now) => onFrame(player, now));
}

function onFrame(player, now) {
  player.frame = 0;
  if (player.playing) advance(player, now);
  if (player.dirty) draw(player);
  if (player.playing) player.frame ||= requestAnimationFrame((next) => onFrame(player, next));
}

function advance(player, now) {
  // A tab that slept must not jump.
  player.owed += (Math.min(250, now - player.lastFrame) / 1000) * player.speed;
  player.lastFrame = now;
  const whole = Math.floor(player.owed + 1e-6);
  if (whole < 1) return;
  player.owed -= whole;
  player.step = Math.min(player.steps.length - 1, player.step + whole);
  player.dirty = true;
  if (player.step === player.steps.length - 1) setPlaying(player, false);
}

function setPlaying(player, playing) {
  if (playing && player.calm) return;
  if (playing && player.step === player.steps.length - 1) player.step = 0;
  Object.assign(player, { playing, owed: 0, lastFrame: performance.now() });
  player.play.replaceChildren(icon(playing ? "pause" : "play"));
  const words = playing ? "Pause" : "Play";
  player.play.setAttribute("aria-label", words);
  player.play.title = words;
  for (const stage of player.stages) stage.said.setAttribute("aria-live", playing ? "off" : "polite");
  if (!playing) report(player);
  refresh(player);
}

function stepBy(player, count) {
  rest(player, player.step + count);
}

// A step by hand ends the playing.
function rest(player, step) {
  if (player.playing) setPlaying(player, false);
  go(player, step);
  report(player);
}

function chooseRow(player, row) {
  player.row = clamp(row, 0, player.blob.traces[0].blockM - 1);
  player.hovered = null;
  refresh(player);
  report(player);
}

function chooseSpeed(player, speed) {
  player.speed = speed;
  player.speedBox.value = speed;
  player.owed = 0;
  report(player);
}

function positionOf(player) {
  return { tile: player.step, row: player.row, speed: player.speed };
}

// Only where the player rests, and only once it has rested for a moment.
function report(player) {
  clearTimeout(player.reporting);
  player.reporting = setTimeout(() => {
    const position = positionOf(player);
    if (player.playing || JSON.stringify(position) === player.reported) return;
    player.reported = JSON.stringify(position);
    player.say?.({ ...position, clicked: player.clicked });
  }, REPORT_AFTER_MS);
}

function listen(player) {
  player.leaving = new AbortController();
  const until = { signal: player.leaving.signal };
  const does = {
    first: () => rest(player, 0),
    previous: () => stepBy(player, -1),
    play: () => setPlaying(player, !player.playing),
    next: () => stepBy(player, 1),
    last: () => rest(player, player.steps.length - 1),
  };
  for (const button of player.box.querySelectorAll("button")) button.addEventListener("click", does[button.dataset.does], until);
  player.box.addEventListener("keydown", (event) => onKey(player, does, event), until);
  player.slider.addEventListener("input", () => rest(player, Number(player.slider.value)), until);
  listenToChoices(player, until);
  for (const stage of player.stages) listenToStage(player, stage, until);
  player.resizing = new ResizeObserver(() => measure(player));
  player.resizing.observe(player.root);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => recolour(player), until);
}

function listenToChoices(player, until) {
  player.speedBox.addEventListener("change", () => chooseSpeed(player, Number(player.speedBox.value)), until);
  for (const [box, name] of [[player.quantityBox, "quantity"], [player.outputBox, "output"]]) {
    box?.addEventListener("change", () => {
      player[name] = box.value;
      refresh(player);
    }, until);
  }
}

function onKey(player, does, event) {
  const { key, target } = event;
  if (target.tagName === "SELECT" || event.ctrlKey || event.metaKey || event.altKey) return;
  // A button that has the focus is pressed by Space itself.
  if (key === " " && target.tagName === "BUTTON") return;
  const speed = SPEEDS.indexOf(player.speed);
  const actions = {
    " ": player.calm ? does.next : does.play,
    ArrowRight: does.next,
    ArrowLeft: does.previous,
    Home: does.first,
    End: does.last,
    ArrowUp: () => chooseRow(player, player.row - 1),
    ArrowDown: () => chooseRow(player, player.row + 1),
    "]": () => chooseSpeed(player, SPEEDS[Math.min(SPEEDS.length - 1, speed + 1)]),
    "[": () => chooseSpeed(player, SPEEDS[Math.max(0, speed - 1)]),
  };
  if (!actions[key]) return;
  event.preventDefault();
  event.stopPropagation();
  actions[key]();
}

function listenToStage(player, stage, until) {
  for (const name of ROW_PANELS) {
    const { canvas } = stage.panels[name];
    const rowAt = (event) => Math.floor((event.offsetY / canvas.clientHeight) * stage.trace.blockM);
    canvas.addEventListener("pointermove", (event) => hover(player, event.pointerType === "mouse" ? rowAt(event) : null), until);
    canvas.addEventListener("pointerleave", () => hover(player, null), until);
    canvas.addEventListener("click", (event) => chooseRow(player, rowAt(event)), until);
  }
  stage.panels.map.canvas.addEventListener("click", (event) => chooseOnMap(player, stage, event), until);
}

function hover(player, row) {
  const found = row === null ? null : clamp(row, 0, player.blob.traces[0].blockM - 1);
  if (found === player.hovered) return;
  player.hovered = found;
  refresh(player);
}

function chooseOnMap(player, stage, event) {
  const { canvas } = stage.panels.map;
  const { rows, columns, group } = stage.trace.grid;
  const column = clamp(Math.floor((event.offsetX / canvas.clientWidth) * columns), 0, columns - 1);
  const row = clamp(Math.floor((event.offsetY / canvas.clientHeight) * rows), 0, rows - 1);
  if (row !== stage.trace.grid.own) {
    clearTimeout(player.reporting);
    player.clicked = { block: row * group, at: Date.now() };
    player.say?.({ ...positionOf(player), clicked: player.clicked });
    return;
  }
  const tile = stage.trace.firstTileOfColumn[column];
  rest(player, player.steps.findIndex((tiles) => tiles[stage.index] === tile));
}
