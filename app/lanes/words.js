// Numbers and sentences about timetables and what is in them.

const PLAY_S = 8;
const NICE = [1, 1.5, 2, 3, 5, 7, 10];

// Times are told in one unit, as exactly as the clock ticks.
function clockOf({ span, facts, tables }) {
  const tick = Math.max(...tables.map((table) => table.tickNs));
  const units = [[1e8, 1e3, "µs"], [1e11, 1e6, "ms"], [Infinity, 1e9, "s"]];
  const [, perUnit, unit] = facts.nsPerTile ? [0, facts.nsPerTile, "tiles"] : units.find(([most]) => span < most);
  const decimals = facts.nsPerTile ? 1 : tick ? clamp(Math.ceil(-Math.log10(tick / perUnit)), 0, 6) : perUnit === 1e3 ? 1 : 4;
  return { perUnit, unit, decimals };
}

function exactly(clock, time) {
  return withUnit(clock, format(time / clock.perUnit, clock.decimals, clock.decimals));
}

function roughly(clock, time) {
  return withUnit(clock, rounded(time / clock.perUnit));
}

function withUnit({ unit }, text) {
  return `${text} ${text === "1" && unit === "tiles" ? "tile" : unit}`;
}

// Three digits, or all before the point.
function rounded(value) {
  if (Math.abs(value) >= 100 || value === 0) return format(value, 0, 0);
  return format(Number(value.toPrecision(3)), 0, 12);
}

function count(value) {
  return format(value, 0, 0);
}

// Kept, since making one takes longer than a frame has.
const formats = new Map();

function format(value, fewest, most) {
  const key = `${fewest}/${most}`;
  if (!formats.has(key)) formats.set(key, new Intl.NumberFormat("en-GB", { minimumFractionDigits: fewest, maximumFractionDigits: most }));
  return formats.get(key).format(value);
}

function counted(value, word) {
  return `${count(value)} ${word}${value === 1 ? "" : "s"}`;
}

function ordinal(value) {
  const teen = value % 100 > 10 && value % 100 < 14;
  return `${count(value)}${(!teen && { 1: "st", 2: "nd", 3: "rd" }[value % 10]) || "th"}`;
}

function headWords({ facts, tables }, head) {
  const batched = tables.some((table) => table.heads > facts.numHeads);
  return batched ? `batch ${Math.floor(head / facts.numHeads)}, head ${head % facts.numHeads}` : `head ${head}`;
}

function pieceWords(blob, table, entry) {
  const head = headWords(blob, table.head[entry]);
  if (table.block[entry] < 0) return `${head}, all its query blocks`;
  return `${head} · query block ${count(table.block[entry])}${queryWords(blob.facts, table, table.block[entry])}`;
}

// Only where the block's size is surely the one that the facts speak of.
function queryWords({ blockM, seqLenQ }, table, block) {
  if (!seqLenQ || table.wholeHeads || Math.ceil(seqLenQ / blockM) !== table.blocks) return "";
  return ` (queries ${count(block * blockM)} to ${count(Math.min(seqLenQ, (block + 1) * blockM) - 1)})`;
}

function entryWords(scene, table, entry) {
  const { clock, blob } = scene;
  const duration = table.end[entry] - table.start[entry];
  const error = table.tickNs ? ` ± ${rounded(table.tickNs / clock.perUnit)} ${clock.unit}` : ` (${table.provenance})`;
  const tiles = table.tiles[entry];
  const each = tiles && !blob.facts.nsPerTile ? `, ${roughly(clock, duration / tiles)} each` : "";
  return [
    pieceWords(blob, table, entry),
    `SM ${table.sm[entry]}`,
    `program ${count(table.program[entry])}, ${ordinal(table.nth[entry])} of ${count(table.onSm[table.sm[entry]].length)} there`,
    `starts at ${exactly(clock, table.start[entry])}`,
    `takes ${exactly(clock, duration)}${error}`,
    `${tiles ? counted(tiles, "key tile") : "no key tile"}${each}`,
    ...groupWords(scene, table, entry),
  ].join(" · ");
}

// Where a program's warpgroups stamped for themselves: when each was at the entry, the producer last.
function groupWords({ clock }, table, entry) {
  if (!table.groupStart) return [];
  const groups = table.groupStart.length / table.sm.length;
  const stay = (group) => {
    const at = entry * groups + group;
    return `${format(table.groupStart[at] / clock.perUnit, clock.decimals, clock.decimals)} to ${exactly(clock, table.groupEnd[at])}`;
  };
  const consumers = Array.from({ length: groups - 1 }, (_, group) => `warpgroup ${group} from ${stay(group)}`);
  return [...consumers, `producer from ${stay(groups - 1)}`];
}

function sisterWords(scene, stage, entry) {
  const { table } = stage;
  const sisters = [...table.byStart].filter((one) => table.head[one] === table.head[entry]);
  if (sisters.length < 2) return "";
  const sms = new Set(sisters.map((one) => table.sm[one])).size;
  const [from, to] = [table.start[sisters[0]], sisters.reduce((last, one) => Math.max(last, table.end[one]), 0)];
  const when = `from ${roughly(scene.clock, from)} to ${roughly(scene.clock, to)}`;
  return `Its head’s ${count(sisters.length)} blocks (tinted) ran on ${counted(sms, "SM")}, ${when}.`;
}

function aboutWords(scene, table) {
  const pieces = table.wholeHeads ? `${counted(table.entries, "program")}, a whole head each`
    : table.programs === table.entries ? counted(table.entries, "program")
      : `${counted(table.programs, "program")} for ${count(table.entries)} query blocks`;
  const idle = table.smCount - table.worked;
  const sms = idle
    ? `${count(table.worked)} of ${count(table.smCount)} SMs worked, ${counted(idle, "SM")} idle`
    : table.smCount === 1 ? "the one SM worked" : `all ${count(table.smCount)} SMs worked`;
  const together = table.slots > 1 ? [`up to ${table.slots} programs at once on an SM`] : [];
  return [sms, pieces, ...together, `first start to last end ${roughly(scene.clock, table.span)}`].join(" · ");
}

// Round factors by which time is slowed, the middle one so that the run takes about PLAY_S.
function slowdownsOf(span) {
  const wanted = (PLAY_S * 1e9) / span;
  const power = 10 ** Math.floor(Math.log10(wanted));
  const off = (nice) => Math.abs(Math.log((nice * power) / wanted));
  const middle = NICE.reduce((best, nice) => (off(nice) < off(best) ? nice : best)) * power;
  return [4, 2, 1, 0.5, 0.25].map((share) => Number((middle * share).toPrecision(2)));
}

function slowdownWords({ span, facts }, slowdown) {
  const takes = `${rounded((span * slowdown) / 1e9)} s`;
  if (facts.nsPerTile) return takes;
  return `${slowdown >= 1 ? `1/${rounded(slowdown)} of real time` : `${rounded(1 / slowdown)} × real time`}, ${takes}`;
}
