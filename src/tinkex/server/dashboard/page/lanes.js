// A trace as lanes on a canvas: one per run or sampler, requests that overlap below each other.
import { html, useEffect, useMemo, useRef, useState } from "./ui.js";
import * as format from "./format.js";

const ROW = 16;
const HEAD = 22;
const MOST_ROWS = 8;
const SCALE = 24;

// Slices by request out of a trace file's begin and end events. Times are seconds.
export function spans(trace) {
  const tracks = new Map();
  const open = new Map();
  const found = [];
  for (const event of trace.traceEvents) {
    if (event.ph === "M" && event.name === "thread_name") tracks.set(event.tid, event.args.name);
    const inner = event.name === "wait" || event.name === "run";
    if (event.ph === "b" && !inner) {
      const span = { name: event.name, track: event.tid, start: event.ts / 1e6, end: null, started: null, args: event.args };
      open.set(event.id, span);
      found.push(span);
    } else if (event.ph === "b" && event.name === "run") {
      const span = open.get(event.id);
      if (span) span.started = event.ts / 1e6;
    } else if (event.ph === "e" && !inner) {
      const span = open.get(event.id);
      if (span) span.end = event.ts / 1e6;
    }
  }
  const whole = found.filter((span) => span.end !== null);
  whole.forEach((span) => { span.track = tracks.get(span.track) ?? String(span.track); });
  return whole;
}

const colours = (all) => new Map([...new Set(all.map((span) => span.name))].sort().map((name, index) => [name, index % 6]));

export function summary(all) {
  const colour = colours(all);
  const rows = new Map();
  for (const span of all) {
    const row = rows.get(span.name) ?? { name: span.name, count: 0, total: 0, longest: 0, colour: colour.get(span.name) };
    row.count += 1;
    row.total += span.end - span.start;
    row.longest = Math.max(row.longest, span.end - span.start);
    rows.set(span.name, row);
  }
  return [...rows.values()].sort((one, other) => other.total - one.total);
}

function arranged(all) {
  const lanes = new Map();
  for (const span of [...all].sort((one, other) => one.start - other.start)) {
    const lane = lanes.get(span.track) ?? { name: span.track, rows: [], spans: [] };
    lanes.set(span.track, lane);
    let row = lane.rows.findIndex((end) => end <= span.start);
    if (row < 0) row = lane.rows.length < MOST_ROWS ? lane.rows.push(0) - 1 : lane.rows.indexOf(Math.min(...lane.rows));
    lane.rows[row] = span.end;
    lane.spans.push({ ...span, row });
  }
  let top = SCALE;
  for (const lane of lanes.values()) {
    lane.top = top;
    top += HEAD + lane.rows.length * ROW + 8;
  }
  return { lanes: [...lanes.values()], height: top };
}

export function Lanes({ spans: all, names }) {
  const canvas = useRef();
  const whole = useMemo(() => [Math.min(...all.map((one) => one.start)), Math.max(...all.map((one) => one.end))], [all]);
  const [range, setRange] = useState(null);
  const [at, setAt] = useState(null);
  const { lanes, height } = useMemo(() => arranged(all), [all]);
  const [from, to] = range ?? whole;
  const scene = useRef();
  scene.current = { lanes, height, from, to, colour: useMemo(() => colours(all), [all]), zero: whole[0], names };
  const zoom = (factor, centre = (from + to) / 2) => {
    const span = Math.max(1e-4, (to - from) * factor);
    if (span >= whole[1] - whole[0]) { setRange(null); return; }
    const start = Math.min(Math.max(whole[0], centre - (centre - from) * factor), whole[1] - span);
    setRange([start, start + span]);
  };
  const move = (share) => {
    const by = Math.min(Math.max((to - from) * share, whole[0] - from), whole[1] - to);
    setRange([from + by, to + by]);
  };
  useEffect(() => { draw(canvas.current, scene.current); }, [all, range, names.size]);
  useEffect(() => {
    const again = () => draw(canvas.current, scene.current);
    const observer = new ResizeObserver(again);
    observer.observe(canvas.current);
    addEventListener("themechange", again);
    const wheel = (event) => {
      if (!event.ctrlKey && !event.shiftKey) return;
      event.preventDefault();
      wheeled.current(event);
    };
    canvas.current.addEventListener("wheel", wheel, { passive: false });
    return () => { observer.disconnect(); removeEventListener("themechange", again); };
  }, []);
  const wheeled = useRef();
  wheeled.current = (event) => zoom(event.deltaY > 0 ? 1.25 : 0.8, from + ((to - from) * event.offsetX) / canvas.current.clientWidth);
  const keys = { "+": () => zoom(0.5), "=": () => zoom(0.5), "-": () => zoom(2), ArrowLeft: () => move(-0.25), ArrowRight: () => move(0.25), 0: () => setRange(null) };
  return html`<div class="row"><button onClick=${() => zoom(0.5)} aria-label="Zoom in">+</button><button onClick=${() => zoom(2)} aria-label="Zoom out">−</button>
      <button onClick=${() => setRange(null)}>All</button><span class="soft small">drag to move, Ctrl and wheel to zoom</span></div>
    <canvas class="lanes plot" ref=${canvas} height=${height} tabindex="0" role="img" aria-label=${`${all.length} requests in ${lanes.length} lanes over ${format.duration(whole[1] - whole[0])}; the table below has them by kind`}
      onKeyDown=${(event) => { const act = keys[event.key]; if (act) { event.preventDefault(); event.stopPropagation(); act(); } }}
      onPointerDown=${(event) => event.target.setPointerCapture(event.pointerId)}
      onPointerMove=${(event) => { if (event.buttons && range) move(-event.movementX / event.target.clientWidth); setAt(under(scene.current, event.offsetX / event.target.clientWidth, event.offsetY)); }}
      onPointerLeave=${() => setAt(null)}></canvas>
    <div class="small soft" role="status">${at ? html`<b>${at.name}</b> ${format.duration(at.end - at.start)}${at.started !== null && `, waited ${format.duration(at.started - at.start)}`} ${Object.entries(at.args).map(([name, value]) => `${name} ${value}`).join(" · ")}` : "Point at a request to read it."}</div>`;
}

function under({ lanes, from, to }, share, y) {
  const at = from + (to - from) * share;
  const slack = (to - from) / 500;
  const lane = lanes.findLast((one) => one.top <= y);
  const row = lane && Math.floor((y - lane.top - HEAD) / ROW);
  return lane?.spans.find((span) => span.row === row && span.start - slack <= at && at <= span.end + slack) ?? null;
}

// A step between two lines of the scale that people can count in: 1, 2 or 5 of a power of ten.
function round(step) {
  const power = 10 ** Math.floor(Math.log10(step));
  return power * [1, 2, 5, 10].find((times) => times * power >= step);
}

function draw(canvas, { lanes, height, from, to, colour, zero, names }) {
  if (!canvas) return;
  const ratio = devicePixelRatio;
  const width = canvas.clientWidth;
  canvas.width = width * ratio;
  canvas.height = height * ratio;
  canvas.style.height = `${height}px`;
  const pen = canvas.getContext("2d");
  pen.scale(ratio, ratio);
  const ink = (name) => { canvas.style.color = `var(--${name})`; return getComputedStyle(canvas).color; };
  const [soft, line] = [ink("soft"), ink("line")];
  const fills = [0, 1, 2, 3, 4, 5].map((number) => ink(`s${number}`));
  const place = (time) => ((time - from) / (to - from)) * width;
  pen.font = "11px system-ui, sans-serif";
  pen.textBaseline = "middle";
  const step = round((to - from) / Math.max(2, width / 120));
  for (let tick = Math.ceil((from - zero) / step); zero + tick * step <= to; tick += 1) {
    const x = place(zero + tick * step);
    pen.fillStyle = line;
    pen.fillRect(x, 0, 1, height);
    pen.fillStyle = soft;
    pen.fillText(`${format.number(tick * step, 6)} s`, x + 4, 8);
  }
  for (const lane of lanes) {
    pen.fillStyle = soft;
    pen.fillText(names.get(lane.name) ?? format.shortId(lane.name), 4, lane.top + HEAD / 2);
    for (const span of lane.spans) {
      if (span.end < from || span.start > to) continue;
      const [x, y] = [place(span.start), lane.top + HEAD + span.row * ROW];
      pen.fillStyle = fills[colour.get(span.name)];
      if (span.started !== null) {
        pen.globalAlpha = 0.35;
        pen.fillRect(x, y + 4, Math.max(1, place(span.started) - x), ROW - 10);
        pen.globalAlpha = 1;
      }
      const begun = span.started === null ? x : place(span.started);
      pen.fillRect(begun, y, Math.max(1, place(span.end) - begun), ROW - 2);
    }
  }
}
