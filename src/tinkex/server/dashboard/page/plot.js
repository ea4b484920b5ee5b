// Curves. A series is mean, minimum and maximum per bucket, as the server cut the range: whatever the
// number of points, about one bucket per pixel is drawn. uPlot is loaded when the first curve is.
import { html, useEffect, useMemo, useRef, useState } from "./ui.js";
import * as format from "./format.js";

const MOST_ZOOM = 4;
let loading = null;
let turn = Promise.resolve();
const known = new Map();

// Many curves at once are drawn one after the other, so that the page answers in between.
function inTurn(work) {
  let wanted = true;
  const begin = (done) => setTimeout(() => { try { if (wanted) work(); } finally { done(); } });
  turn = turn.then(() => new Promise(begin));
  return () => { wanted = false; };
}

function library() {
  loading ??= new Promise((resolve, reject) => {
    const base = new URL("./vendor/", import.meta.url); // as seen from the file all modules are joined in
    const style = Object.assign(document.createElement("link"), { rel: "stylesheet", href: new URL("uplot.css", base).pathname });
    const script = document.createElement("script");
    script.addEventListener("load", () => resolve(window.uPlot));
    script.addEventListener("error", reject);
    document.head.append(style, script);
    setSource(script, new URL("uplot.classic.js", base).pathname);
  });
  return loading;
}

// The address of a script is where injections end: the policy lets through what this one rule made.
const policy = window.trustedTypes?.createPolicy("tinkex", {
  createScriptURL(path) {
    if (/^\/page\/\w+\/vendor\/uplot\.classic\.js$/.test(path)) return path;
    throw new TypeError(`no script is at ${path}`);
  },
});
const setSource = (script, path) => { script.src = policy ? policy.createScriptURL(path) : path; };

// Colours are written down once, in the stylesheet; a canvas has to be told what they came to.
function colour(name, alpha = 1) {
  const key = `${name} ${alpha}`;
  if (!known.has(key)) known.set(key, computed(name, alpha));
  return known.get(key);
}

function computed(name, alpha) {
  const probe = document.body.appendChild(document.createElement("span"));
  probe.style.color = `color-mix(in srgb, var(--${name}) ${alpha * 100}%, transparent)`;
  const found = getComputedStyle(probe).color;
  probe.remove();
  return found;
}

// An average that remembers: each value counts `weight` times less than the next.
export function smoothed(values, weight) {
  if (!weight) return values;
  let sum = 0;
  let total = 0;
  return values.map((value) => {
    if (value === null) return null;
    sum = sum * weight + value * (1 - weight);
    total = total * weight + (1 - weight);
    return sum / total;
  });
}

const positive = (values, log) => (log ? values.map((value) => (value > 0 ? value : null)) : values);

function table(series, smoothing, log, join) {
  const tables = series.map((one) => [
    one.x, positive(smoothed(one.mean, smoothing), log),
    positive(smoothing ? one.mean : one.min, log), positive(smoothing ? one.mean : one.max, log),
  ]);
  return tables.length > 1 ? join(tables) : tables[0];
}

export function Chart({ title, help, series, x, log, smoothing = 0, range, onRange, tall, sync = "curves" }) {
  const box = useRef();
  const plot = useRef(null);
  const [uPlot, setLibrary] = useState(null);
  const [theme, setTheme] = useState(0);
  const [at, setAt] = useState(null);
  const asked = useRef();
  asked.current = { range, onRange };
  const latest = useRef();
  const labels = series.map((one) => `${one.colour}${one.label}`).join("\n");
  const data = useMemo(() => uPlot && series.length && table(series, smoothing, log, uPlot.join), [uPlot, series, smoothing, log]);

  latest.current = data;
  useEffect(() => { library().then((found) => setLibrary(() => found)); }, []);
  useEffect(() => {
    const again = () => { known.clear(); setTheme((count) => count + 1); };
    const media = matchMedia("(prefers-color-scheme: dark)");
    media.addEventListener("change", again);
    addEventListener("themechange", again);
    return () => { media.removeEventListener("change", again); removeEventListener("themechange", again); };
  }, []);
  useEffect(() => {
    if (!data) return undefined;
    const place = box.current;
    let end = () => {};
    const skip = inTurn(() => {
      const made = new uPlot(options({ place, series, x, log, sync, asked, smoothing, setAt }), latest.current, place);
      plot.current = made;
      const observer = new ResizeObserver(() => made.setSize({ width: place.clientWidth, height: place.clientHeight }));
      observer.observe(place);
      end = () => { observer.disconnect(); made.destroy(); plot.current = null; };
    });
    return () => { skip(); end(); };
  }, [uPlot, labels, x, log, theme, smoothing > 0, Boolean(data)]);
  useEffect(() => { if (plot.current && data) plot.current.setData(data); }, [data, range]);

  return html`<figure class=${`card chart ${tall ? "tall" : ""}`}>
    <figcaption class="spread"><h2 title=${help}>${title}</h2></figcaption>
    <${Reading} series=${series} at=${at} x=${x} />
    <div class="plot" ref=${box} role="img" tabindex="0" aria-label=${described(title, series)}
      onKeyDown=${(event) => keyed(event, plot.current, range, onRange)}></div>
  </figure>`;
}

function Reading({ series, at, x }) {
  return html`<div class="reading">
    ${at !== null && html`<span>${x === "time" ? new Date(at * 1000).toLocaleTimeString() : `step ${format.whole(at)}`}</span>`}
    ${series.map((one) => {
      const index = at === null ? one.x.length - 1 : nearest(one.x, at);
      return html`<span key=${one.label}>${series.length > 1 && html`<span class=${`dot f${one.colour}`}></span> ${one.label} `}<b>${format.number(one.mean[index])}</b>
        ${one.min[index] !== one.max[index] && html` ${format.number(one.min[index])} – ${format.number(one.max[index])}`}</span>`;
    })}</div>`;
}

function nearest(values, wanted) {
  let low = 0;
  let high = values.length - 1;
  while (high - low > 1) {
    const middle = (low + high) >> 1;
    if (values[middle] <= wanted) low = middle; else high = middle;
  }
  return wanted - values[low] <= values[high] - wanted ? low : high;
}

const described = (title, series) => `${title}. ${series.map((one) =>
  `${one.label}: last ${format.number(one.mean.at(-1))}, lowest ${format.number(Math.min(...one.min))}, highest ${format.number(Math.max(...one.max))}`).join(". ")}. Plus and minus zoom, arrows move, 0 shows all.`;

function options({ place, series, x, log, sync, asked, smoothing, setAt }) {
  const [grid, ink, font] = [colour("line"), colour("soft"), "11px system-ui, sans-serif"];
  const axis = { stroke: ink, font, grid: { stroke: grid, width: 1 }, ticks: { show: false } };
  const lines = series.flatMap((one) => edge(one, smoothing));
  return {
    width: place.clientWidth,
    height: place.clientHeight,
    legend: { show: false },
    padding: [8, 8, 0, 0],
    cursor: { sync: { key: sync }, drag: { x: true, y: false, setScale: false }, points: { size: 6 }, y: false },
    scales: {
      x: { time: x === "time", range: (_, low, high) => asked.current.range ?? (low === high ? [low - 1, high + 1] : [low, high]) },
      y: log ? { distr: 3 } : {},
    },
    axes: [
      { ...axis, grid: { show: false }, size: 28, values: x === "time" ? undefined : (_, ticks) => ticks.map((tick) => (Number.isInteger(tick) ? format.short(tick) : "")) },
      { ...axis, size: 52, values: (_, ticks) => ticks.map((tick) => (tick === null ? "" : format.number(tick, 3))) },
    ],
    series: [{}, ...lines],
    bands: smoothing ? [] : series.map((one, index) => ({ series: [3 * index + 3, 3 * index + 2], fill: colour(`s${one.colour}`, 0.16) })),
    hooks: {
      setSelect: [(u) => {
        if (u.select.width < MOST_ZOOM) return;
        const from = u.posToVal(u.select.left, "x");
        const to = u.posToVal(u.select.left + u.select.width, "x");
        u.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
        asked.current.onRange?.([from, to]);
      }],
      setCursor: [(u) => setAt(u.cursor.idx === null || u.cursor.idx === undefined ? null : u.data[0][u.cursor.idx])],
      ready: [(u) => u.over.addEventListener("dblclick", () => asked.current.onRange?.(null))],
    },
  };
}

// The mean as a line; its minimum and maximum as the edges of a band, or what was measured, faintly.
function edge(one, smoothing) {
  const points = { show: one.x.length < 2 };
  const quiet = smoothing
    ? { stroke: colour(`s${one.colour}`, 0.25), width: 1, spanGaps: true, points }
    : { width: 0, spanGaps: true, points: { show: false } };
  return [
    { label: one.label, stroke: colour(`s${one.colour}`), width: 1.5, spanGaps: true, points }, quiet, { width: 0, spanGaps: true, points: { show: false } },
  ];
}

function keyed(event, plot, range, onRange) {
  if (!plot || !onRange) return;
  const { min, max } = plot.scales.x;
  const span = max - min;
  const moves = {
    "+": [min + span / 4, max - span / 4], "=": [min + span / 4, max - span / 4], "-": [min - span / 2, max + span / 2],
    ArrowLeft: [min - span / 4, max - span / 4], ArrowRight: [min + span / 4, max + span / 4], 0: null,
  };
  if (!(event.key in moves) || (event.key === "0" && !range)) return;
  event.preventDefault();
  event.stopPropagation();
  onRange(moves[event.key]);
}
