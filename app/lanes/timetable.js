// The timetables of a blob, and what follows from them: who ran where, what stands for what, how many SMs are busy.

function unpack(bytes) {
  const blob = unpacked(bytes, "tables");
  for (const table of blob.tables) {
    Object.assign(table, table.arrays);
    prepare(table);
  }
  blob.span = Math.max(...blob.tables.map((table) => table.span));
  return blob;
}

// entries: how many. onSm: those of each SM, rows: those of each place on it, byStart: all, in the order of their starts.
// nth: which of its SM's an entry is. lastEnds: when an SM had worked, 0 where it never did. cells: the entry of each head and
// block. busy: when SMs began to work and when they stopped, each sorted.
function prepare(table) {
  table.entries = table.sm.length;
  table.byStart = Uint32Array.from({ length: table.entries }, (_, at) => at).sort((a, b) => table.start[a] - table.start[b] || a - b);
  table.onSm = Array.from({ length: table.smCount }, () => []);
  table.rows = Array.from({ length: table.smCount * table.slots }, () => []);
  table.nth = new Uint32Array(table.entries);
  table.lastEnds = new Float64Array(table.smCount);
  table.cells = new Int32Array(table.heads * table.blocks).fill(-1);
  for (const entry of table.byStart) {
    const sm = table.sm[entry];
    table.nth[entry] = table.onSm[sm].push(entry);
    table.rows[sm * table.slots + table.slot[entry]].push(entry);
    table.lastEnds[sm] = Math.max(table.lastEnds[sm], table.end[entry]);
    table.cells[cellOf(table, table.head[entry], table.block[entry])] = entry;
  }
  table.span = Math.max(...table.lastEnds);
  table.starts = table.start.slice().sort();
  table.ends = table.end.slice().sort();
  table.worked = table.onSm.filter((found) => found.length).length;
  table.firstIdle = table.lastEnds.reduce((first, end, sm) => (table.onSm[sm].length ? Math.min(first, end) : first), Infinity);
  table.busy = busyTimes(table);
}

function cellOf(table, head, block) {
  return head * table.blocks + Math.max(0, block);
}

// workedNs: how long each SM had at least one program.
function busyTimes(table) {
  const [begun, stopped, workedNs] = [[], [], new Float64Array(table.smCount)];
  for (const [sm, found] of table.onSm.entries()) {
    let [since, until] = [0, -1];
    const stop = () => {
      if (until < 0) return;
      stopped.push(until);
      workedNs[sm] += until - since;
    };
    for (const entry of found) {
      if (table.start[entry] > until) {
        stop();
        since = table.start[entry];
        begun.push(since);
      }
      until = Math.max(until, table.end[entry]);
    }
    stop();
  }
  return { begun: summed(begun), stopped: summed(stopped), workedNs };
}

// Sorted times with the sum of all before each, so that time spent up to any moment needs no loop.
function summed(times) {
  const sorted = Float64Array.from(times).sort();
  const sums = new Float64Array(sorted.length + 1);
  sorted.forEach((time, at) => (sums[at + 1] = sums[at] + time));
  return { sorted, sums };
}

// How many of the sorted values are at most that large.
function countUpTo(sorted, value) {
  return firstThat(sorted.length, (at) => sorted[at] > value);
}

// The first of so many places, sorted by what is asked, for which it is true; their number where it is for none.
function firstThat(places, asked) {
  let [low, high] = [0, places];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (asked(middle)) high = middle;
    else low = middle + 1;
  }
  return low;
}

function busyAt({ busy }, time) {
  return countUpTo(busy.begun.sorted, time) - countUpTo(busy.stopped.sorted, time);
}

// SM·ns worked until then.
function workedUntil({ busy }, time) {
  const passed = ({ sorted, sums }) => {
    const count = countUpTo(sorted, time);
    return count * time - sums[count];
  };
  return passed(busy.begun) - passed(busy.stopped);
}

// A place is {stage, entry}; a piece is {head, block}, which every table of the same work has.
function placeOf(scene, piece) {
  for (const [stage, table] of scene.blob.tables.entries()) {
    const entry = entryOf(table, piece);
    if (entry >= 0) return { stage, entry };
  }
  return null;
}

function pieceOf(scene, place) {
  if (!place) return null;
  const table = scene.blob.tables[place.stage];
  return { head: table.head[place.entry], block: table.block[place.entry] };
}

function entryOf(table, { head, block }) {
  if (head >= table.heads || block >= table.blocks) return -1;
  const entry = table.cells[cellOf(table, head, block)];
  return entry >= 0 && table.block[entry] === block ? entry : -1;
}

// The entry of a table that stands for a place: its own, or the same piece of work where both have the same pieces.
function entryIn(scene, stage, place) {
  if (!place) return -1;
  if (place.stage === stage.index) return place.entry;
  const there = scene.blob.tables[place.stage];
  return there.blocks === stage.table.blocks && there.heads === stage.table.heads ? entryOf(stage.table, pieceOf(scene, place)) : -1;
}
