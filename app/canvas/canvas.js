// What every canvas here shares: it stands before the canvas's own file in one module.

const TYPES = { u1: Uint8Array, u2: Uint16Array, i4: Int32Array, f4: Float32Array, f8: Float64Array };
const ICONS = {
  first: "M3 3v10M13 3 6 8l7 5z",
  previous: "M12 3 5 8l7 5z",
  play: "M4 2.5 13 8l-9 5.5z",
  pause: "M5 3v10M11 3v10",
  next: "M4 3l7 5-7 5z",
  last: "M13 3v10M3 3l7 5-7 5z",
  plus: "M3 8h10M8 3v10",
  minus: "M3 8h10",
};

// ---- Hosts and data

// What Streamlit calls, again with the same parent after every change of the data or of the theme.
function hosted(rootClass, mount) {
  const mounted = new WeakMap();
  return ({ data, parentElement, setStateValue }) => {
    const root = parentElement.querySelector(rootClass);
    // One value for all there is to say: of two values set within a moment, Streamlit may lose one.
    const say = (said) => setStateValue("said", said);
    const found = mounted.get(root);
    if (found) found.update(data, say);
    else mounted.set(root, mount(root, data, say));
    return () => {
      mounted.get(root)?.destroy();
      mounted.delete(root);
    };
  };
}

// The header of a blob of blob.py; in each of the parts under that name, `arrays` holds typed arrays.
function unpacked(bytes, name) {
  // A view of a message may begin anywhere; a Float64Array may not.
  const aligned = bytes.byteOffset % 8 ? bytes.slice() : bytes;
  const length = new DataView(aligned.buffer, aligned.byteOffset).getUint32(0, true);
  const blob = JSON.parse(new TextDecoder().decode(aligned.subarray(4, 4 + length)));
  const start = aligned.byteOffset + 4 + length;
  for (const part of blob[name]) {
    for (const [array, [type, offset, count]] of Object.entries(part.arrays)) {
      part.arrays[array] = new TYPES[type](aligned.buffer, start + offset, count);
    }
  }
  return blob;
}

function clamp(value, low, high) {
  return Math.max(low, Math.min(high, value));
}

// ---- The document

function element(tag, attributes = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) if (value !== null) made.setAttribute(name, value);
  made.append(...children);
  return made;
}

function icon(name) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const path = document.createElementNS("http://www.w3.org/2000/svg", "path");
  svg.setAttribute("viewBox", "0 0 16 16");
  svg.setAttribute("aria-hidden", "true");
  path.setAttribute("d", ICONS[name]);
  svg.append(path);
  return svg;
}

function select(label, options, chosen) {
  const made = element("select", {}, ...options.map(([value, words]) => element("option", { value }, words)));
  made.value = chosen;
  element("label", {}, element("span", {}, label), made);
  return made;
}

// Measured, interpreted or modelled, and on what.
function badge({ provenance, device }) {
  return element("span", { class: `badge ${provenance}` }, element("i", { "aria-hidden": "true" }), `${provenance} · ${device}`);
}

function write(node, text) {
  if (node.textContent !== text) node.textContent = text;
}

// Whether what a part of a stage shows has to be drawn anew: only when the key is another one.
function changed(stage, name, key) {
  if (stage.shown[name] === key) return false;
  stage.shown[name] = key;
  return true;
}

// ---- Colours

// As Streamlit says, else as the system does.
function setTheme(box) {
  const given = getComputedStyle(box).getPropertyValue("--st-background-color").trim();
  const dark = given ? isDark(given) : matchMedia("(prefers-color-scheme: dark)").matches;
  box.dataset.theme = dark ? "dark" : "light";
}

function colorsOf(box, names) {
  const style = getComputedStyle(box);
  return Object.fromEntries(names.map((name) => [name, rgbOf(style.getPropertyValue(`--${name}`).trim())]));
}

function isDark(color) {
  const [red, green, blue] = rgbOf(color);
  return 0.299 * red + 0.587 * green + 0.114 * blue < 128;
}

// '#rgb', '#rrggbb' or 'rgb(…)'.
function rgbOf(color) {
  if (!color.startsWith("#")) return color.match(/[\d.]+/g).slice(0, 3).map(Number);
  const digits = color.length === 4 ? [...color.slice(1)].map((digit) => digit + digit) : color.slice(1).match(/../g);
  return digits.slice(0, 3).map((pair) => parseInt(pair, 16));
}

function mixed(from, to, share) {
  return from.map((value, channel) => Math.round(value + (to[channel] - value) * share));
}

function css(color) {
  return `rgb(${color.join(" ")})`;
}

// As an ImageData's memory holds it on every machine that runs a browser: little-endian.
function packed([red, green, blue]) {
  return ((255 << 24) | (blue << 16) | (green << 8) | red) >>> 0;
}

function ramp(stops) {
  const table = Uint32Array.from({ length: 256 }, (_, at) => {
    const x = at / 255;
    const upper = Math.max(1, stops.findIndex(([place]) => place >= x));
    const [[low, from], [high, to]] = [stops[upper - 1], stops[upper]];
    return packed(mixed(from, to, (x - low) / (high - low)));
  });
  table.gradient = `linear-gradient(90deg, ${stops.map(([place, color]) => `${css(color)} ${place * 100}%`).join(", ")})`;
  return table;
}

// ---- Canvases

function sizeCanvas(canvas, width, height) {
  const ratio = devicePixelRatio || 1;
  canvas.style.width = `${width}px`;
  canvas.style.height = `${height}px`;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
}

function fill(context, color, x, y, width, height) {
  context.fillStyle = color;
  context.fillRect(x, y, width, height);
}
