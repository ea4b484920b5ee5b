// Small pieces that every view is made of.
import { html, useEffect, useRef, useState } from "./ui.js";
import { on } from "./live.js";
import * as format from "./format.js";

export const Badge = ({ kind = "", children }) => html`<span class=${`badge ${kind}`}>${children}</span>`;

export const Empty = ({ children }) => html`<p class="empty">${children}</p>`;

export const Problem = ({ error }) =>
  error && html`<p class="advice error" role="alert">${error.message}</p>`;

const KINDS = {
  stalled_client: "Client stalled", exploding_norm: "Gradient norm", failing_calls: "Failing calls",
  sampler_gap: "Sampler gap", zero_advantages: "No signal", queue_limit: "Queue limit",
  engine_down: "Engine down", broken_run: "Broken run", disk_low: "Disk low",
};

export const adviceName = (item) => KINDS[item.kind] ?? item.kind;

export const Advice = ({ items, of }) => html`${(items ?? []).map((item) => html`
  <div key=${item.kind + item.run} class=${`advice ${item.severity}`} role="status">
    <b>${adviceName(item)}</b>
    <span>${item.text}${" "}
      ${item.run && !of && html`<a href=${`#/runs/${item.run}`}>${format.runName(item)}</a>`}</span>
  </div>`)}`;

export function Copy({ text, label = "Copy", hide = false }) {
  const [said, setSaid] = useState("");
  const copy = async () => {
    try {
      await navigator.clipboard.writeText(text);
      setSaid("Copied");
    } catch {
      setSaid("Select it and press Ctrl-C");
    }
    setTimeout(() => setSaid(""), 1500);
  };
  return html`<span class="copy">${!hide && html`<code tabindex="0" role="group" aria-label="text to copy">${text}</code>`}
    <button class="plain small" onClick=${copy} aria-label=${`${label}: ${text}`}>${said || label}</button>
    <span class="hidden" role="status">${said}</span></span>`;
}

// A curve in a table cell: shape, not numbers; those stand beside it.
export function Spark({ y, full = false, label = "trend", floor = null }) {
  const values = (y ?? []).filter((value) => Number.isFinite(value));
  if (values.length < 2) return html`<svg class=${full ? "spark full" : "spark"} aria-hidden="true"></svg>`;
  const low = floor ?? Math.min(...values);
  const range = Math.max(...values) - low || 1;
  const points = values.map((value, index) =>
    `${((index / (values.length - 1)) * 100).toFixed(2)},${(29 - ((value - low) / range) * 28).toFixed(2)}`);
  return html`<svg class=${full ? "spark full" : "spark"} viewBox="0 0 100 30" preserveAspectRatio="none" role="img" aria-label=${label}>
    ${full && html`<path class="area" d=${`M0,30L${points.join("L")}L100,30Z`} />`}
    <path d=${`M${points.join("L")}`} /></svg>`;
}

export const Stat = ({ label, value, unit, spark }) => html`<div class="card stat">
  <div class="soft small">${label}</div>
  <div class="value">${value}${unit && html`<span class="unit">${unit}</span>`}</div>
  ${spark && html`<${Spark} y=${spark} full floor=${0} label=${`${label}, last minutes`} />`}
</div>`;

// Parts of a whole, side by side, with their sizes in words below.
export function Shares({ parts, total, label }) {
  const sum = parts.reduce((all, part) => all + part.bytes, 0);
  const whole = Math.max(total ?? 0, sum) || 1;
  let at = 0;
  let colour = -1;
  const shown = parts.map((part) => {
    const free = part.name.includes("free");
    if (!free) colour += 1;
    const found = { ...part, x: at, share: part.bytes / whole, fill: free ? "free" : `f${colour % 6}` };
    at += found.share;
    return found;
  });
  return html`<div class="stack">
    <svg class="memory" viewBox="0 0 1000 14" preserveAspectRatio="none" role="img" aria-label=${label}>
      ${shown.map((part) => html`<rect key=${part.name} class=${part.fill} x=${part.x * 1000} width=${Math.max(part.share * 1000, part.bytes ? 2 : 0)} height="14" />`)}
    </svg>
    <div class="legend">
      ${shown.map((part) => html`<span key=${part.name}><span class=${`dot ${part.fill}`}></span>${part.name} ${format.bytes(part.bytes)}</span>`)}
      ${total && html`<span>of ${format.bytes(total)}</span>`}
    </div></div>`;
}

export const Tabs = ({ label, options, value, onChange }) => html`<div class="tabs" role="group" aria-label=${label}>
  ${options.map(([key, text]) => html`<button key=${key} type="button" aria-pressed=${key === value} onClick=${() => onChange(key)}>${text}</button>`)}
</div>`;

export const Model = ({ name }) => html`<span class="nowrap" title=${name}>${(name ?? "").split("/").at(-1)}</span>`;

export const Who = ({ tenant }) => html`<span class="nowrap" title=${tenant}>${(tenant ?? "").replace(/^(key-.{6}).*/, "$1…")}</span>`;

export const Ago = ({ at }) => {
  useTick();
  return html`<time class="nowrap" datetime=${at ? new Date(at * 1000).toISOString() : ""} title=${format.time(at)}>${format.ago(at)}</time>`;
};

function useTick(milliseconds = 10_000) {
  const [, again] = useState(0);
  useEffect(() => {
    const timer = setInterval(() => again((count) => count + 1), milliseconds);
    return () => clearInterval(timer);
  }, []);
}

// What `load` gives, again whenever `inputs` change or one of `events` is heard: never more often than
// once a second, however much happens, and an older answer never replaces a newer one.
export function useLoaded(load, inputs, events = [], isMine = () => true) {
  const [state, setState] = useState({ data: null, error: null });
  const current = useRef(null);
  useEffect(() => {
    let alive = true;
    let asking = false;
    let again = false;
    let timer = null;
    const ask = async () => {
      if (asking) { again = true; return; }
      asking = true;
      try {
        const data = await load();
        if (alive) setState({ data, error: null });
      } catch (error) {
        if (alive) setState((before) => ({ data: before.data, error }));
      }
      asking = false;
      if (again && alive) { again = false; soon(); }
    };
    const soon = () => {
      timer ??= setTimeout(() => { timer = null; ask(); }, 1000);
    };
    current.current = ask;
    ask();
    const ends = events.map((name) => on(name, (data) => isMine(data) && soon()));
    ends.push(on("reset", ask));
    return () => {
      alive = false;
      clearTimeout(timer);
      ends.forEach((end) => end());
    };
  }, inputs);
  return { ...state, reload: () => current.current?.() };
}

export function useNow(latest) {
  const [now, setNow] = useState(latest);
  useEffect(() => on("now", setNow), []);
  return now;
}

export const Section = ({ title, aside, children, id }) => html`<section class="card flush" aria-labelledby=${id}>
  <div class="spread"><h2 id=${id}>${title}</h2>${aside}</div>${children}</section>`;
