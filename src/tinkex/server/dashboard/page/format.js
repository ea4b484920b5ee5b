// Numbers and times as people read them. What is not known is a dash, never a zero.
const NONE = "–";
const STEPS = [[1e9, "B"], [1e6, "M"], [1e3, "k"]];

const known = (value) => value !== null && value !== undefined && Number.isFinite(value);

export const whole = (value) => (known(value) ? Math.round(value).toLocaleString("en-US") : NONE);

export function number(value, digits = 4) {
  if (!known(value)) return NONE;
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e7)) return value.toExponential(Math.min(digits - 1, 2));
  if (Number.isInteger(value)) return value.toLocaleString("en-US");
  const decimals = Math.max(0, digits - 1 - Math.floor(Math.log10(size)));
  return value.toLocaleString("en-US", { maximumFractionDigits: decimals });
}

export function short(value) {
  if (!known(value)) return NONE;
  for (const [step, unit] of STEPS) {
    if (Math.abs(value) >= step) return `${(value / step).toFixed(Math.abs(value) >= 100 * step ? 0 : 1)}${unit}`;
  }
  return Math.abs(value) >= 10 || Number.isInteger(value) ? String(Math.round(value)) : value.toFixed(1);
}

export function bytes(value) {
  if (!known(value)) return NONE;
  for (const [power, unit] of [[3, "GiB"], [2, "MiB"], [1, "KiB"]]) {
    const size = 1024 ** power;
    if (value >= size) return `${(value / size).toFixed(value >= 100 * size ? 0 : 1)} ${unit}`;
  }
  return `${value} B`;
}

export const percent = (part) => (known(part) ? `${Math.round(part * 100)} %` : NONE);

export function duration(seconds) {
  if (!known(seconds)) return NONE;
  if (seconds < 1) return `${number(seconds * 1000, 3)} ms`;
  if (seconds < 10) return `${seconds.toFixed(1)} s`;
  if (seconds < 120) return `${Math.round(seconds)} s`;
  if (seconds < 7200) return `${Math.round(seconds / 60)} min`;
  if (seconds < 172_800) return `${Math.round(seconds / 3600)} h`;
  return `${Math.round(seconds / 86_400)} d`;
}

export function ago(moment, now = Date.now() / 1000) {
  if (!known(moment)) return NONE;
  const past = now - moment;
  if (past < -5) return `in ${duration(-past)}`;
  return past < 5 ? "just now" : `${duration(past)} ago`;
}

export const until = (moment) => (known(moment) ? ago(moment) : "never");

const HOUR = { day: "numeric", month: "short", hour: "2-digit", minute: "2-digit" };
export const hour = (moment) => new Date(moment * 1000).toLocaleString(undefined, HOUR);

export const time = (moment) => (known(moment) ? new Date(moment * 1000).toLocaleString() : NONE);

export const runName = (run) => run.name || shortId(run.run);

// The run that a sample or a checkpoint, which has a name of its own, belongs to.
export const ofRun = (thing) => thing.run_name || shortId(thing.run);

// The end of an id says most: which training run of which session.
export function shortId(id) {
  const [session, ...rest] = (id ?? "").split(":");
  return rest.length ? `${session.slice(0, 8)}:${rest.join(":")}` : session.slice(0, 13);
}
