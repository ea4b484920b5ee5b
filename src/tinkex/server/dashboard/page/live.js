// One event stream for the whole page: resumed where it broke off, replaced by polling where a proxy
// holds it back. Listeners hear events by name; `reset` asks them to fetch again what they show.
import { DASHBOARD, call, get } from "./api.js";

const SILENT_MS = 40_000; // the server says something every 15 s,
const FIRST_MS = 10_000; // and at once when a stream begins
const TRIES = 3;
const MOST_TURNS = 64;
const POLL_MS = 3_000;
const LONGEST_PAUSE_MS = 10_000;

const listeners = new Map();
let lastId = null;
let state = "connecting";
let stopping = null;
let lastNow = null;

export const connection = () => state;
export const latestNow = () => lastNow;

export function on(name, listener) {
  if (!listeners.has(name)) listeners.set(name, new Set());
  listeners.get(name).add(listener);
  return () => listeners.get(name).delete(listener);
}

function tell(name, data) {
  if (name === "now") lastNow = data;
  for (const listener of [...(listeners.get(name) ?? [])]) listener(data);
}

function become(next) {
  if (state === next) return;
  state = next;
  tell("connection", state);
}

export function start() {
  stop();
  stopping = new AbortController();
  run(stopping.signal);
}

export function stop() {
  stopping?.abort();
  stopping = null;
}

async function run(signal) {
  let failures = 0;
  let turns = 2;
  while (!signal.aborted) {
    try {
      if (failures < TRIES) await stream(signal, () => { failures = 0; turns = 2; }); // ends with an error
      await poll(signal, turns);
      failures = TRIES - 1; // a stream may get through by now: a server may only have been slow
      turns = Math.min(2 * turns, MOST_TURNS);
    } catch (error) {
      if (signal.aborted || error.status === 401) return;
      if (error.heldBack) { failures = TRIES; continue; }
      if (error.status !== 429) failures += error.status === 0 ? 0 : 1;
      become("reconnecting");
      await pause(Math.min(500 * 2 ** failures, LONGEST_PAUSE_MS), signal);
    }
  }
}

async function stream(signal, received) {
  const silence = new AbortController();
  const either = AbortSignal.any([signal, silence.signal]);
  let timer = setTimeout(() => silence.abort(Object.assign(new Error(), { name: "AbortError", heldBack: true })), FIRST_MS);
  try {
    const headers = lastId ? { "last-event-id": lastId } : {};
    const response = await call(`${DASHBOARD}/events`, { headers, signal: either });
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) throw new Error("the stream ended");
      clearTimeout(timer);
      timer = setTimeout(() => silence.abort(), SILENT_MS);
      received();
      become("live");
      const blocks = (rest + value).split(/\r?\n\r?\n/);
      rest = blocks.pop();
      blocks.forEach(hear);
    }
  } finally {
    clearTimeout(timer);
  }
}

function hear(block) {
  let name = "message";
  let data = "";
  for (const line of block.split(/\r?\n/)) {
    const [, field, value] = /^([^:]*):? ?(.*)$/.exec(line);
    if (field === "event") name = value;
    else if (field === "data") data += value;
    else if (field === "id") lastId = value;
  }
  if (data) deliver(name, JSON.parse(data));
}

function deliver(name, data) {
  if ((name === "hello" || name === "reset") && data.id) lastId = data.id;
  tell(name, data);
}

async function poll(signal, turns) {
  for (let turn = 0; turn < turns && !signal.aborted; turn += 1) {
    const after = lastId ? `?after=${encodeURIComponent(lastId)}` : "";
    const [found, now] = await Promise.all([
      get(`${DASHBOARD}/poll${after}`, { signal }),
      get(`${DASHBOARD}/now`, { signal }),
    ]);
    lastId = found.id;
    become("polling");
    if (found.reset) tell("reset", found);
    found.events.forEach((event) => deliver(event.event, event.data));
    tell("now", now);
    await pause(POLL_MS, signal);
  }
}

const pause = (milliseconds, signal) => new Promise((resolve) => {
  const timer = setTimeout(resolve, milliseconds);
  signal.addEventListener("abort", () => { clearTimeout(timer); resolve(); }, { once: true });
});
