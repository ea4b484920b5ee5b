// Timeline: a session's requests, each from acceptance to result, with its wait apart from its work.
import { html, useMemo } from "../ui.js";
import { DASHBOARD, call, get, query } from "../api.js";
import * as format from "../format.js";
import { Empty, Problem, Section, useLoaded } from "../parts.js";
import { Lanes, spans, summary } from "../lanes.js";

const PERFETTO = "https://ui.perfetto.dev";

export function Timeline({ rest }) {
  const runs = useLoaded(() => get(`${DASHBOARD}/runs${query({ limit: 200 })}`), [], ["run"]);
  const sessions = useMemo(() => bySession(runs.data?.runs ?? []), [runs.data]);
  const session = rest || sessions[0]?.session;
  const names = new Map((runs.data?.runs ?? []).map((run) => [run.run, format.runName(run)]));
  return html`
    <div class="head"><h1 class="grow">Timeline</h1>
      <label class="line">Session <select value=${session} onChange=${(event) => { location.hash = `#/timeline/${event.target.value}`; }}>
        ${session && !sessions.some((one) => one.session === session) && html`<option value=${session}>${format.shortId(session)}</option>`}
        ${sessions.map((one) => html`<option key=${one.session} value=${one.session}>${one.names.join(", ")}</option>`)}</select></label></div>
    <${Problem} error=${runs.error} />
    ${session ? html`<${Trace} key=${session} session=${session} names=${names} />` : runs.data && html`<div class="card"><${Empty}>No session has trained yet.</${Empty}></div>`}`;
}

function bySession(runs) {
  const found = new Map();
  for (const run of runs) {
    const one = found.get(run.session) ?? { session: run.session, names: [], at: run.last_request_at };
    one.names.push(format.runName(run));
    found.set(run.session, one);
  }
  return [...found.values()];
}

function Trace({ session, names }) {
  const { data, error, reload } = useLoaded(
    async () => (await call(`${DASHBOARD}/sessions/${encodeURIComponent(session)}/trace`)).text(), [session]);
  const found = useMemo(() => (data ? spans(JSON.parse(data)) : null), [data]);
  if (!found) return html`<${Problem} error=${error} />`;
  return html`<div class="row"><button onClick=${reload}>Reload</button><button onClick=${() => save(data, session)}>Download</button>
      <button onClick=${() => openPerfetto(data, session)}>Open in Perfetto</button><span class="soft small">opens ui.perfetto.dev in a new tab; the trace goes from this page to that one and nowhere else</span></div>
    <${Problem} error=${error} />
    ${found.length === 0 ? html`<div class="card"><${Empty}>Nothing was asked in this session.</${Empty}></div>` : html`
      <section class="card stack" aria-label="Requests over time"><${Lanes} spans=${found} names=${names} /></section>
      <${Section} id="kinds" title="By kind"><div class="wrap" tabindex="0" role="group" aria-labelledby="kinds"><table>
        <thead><tr><th>Request</th><th class="number">Count</th><th class="number">Mean</th><th class="number">Longest</th><th class="number">All together</th></tr></thead>
        <tbody>${summary(found).map((row) => html`<tr key=${row.name}><td><span class=${`dot f${row.colour}`}></span> ${row.name}</td><td class="number">${format.whole(row.count)}</td>
          <td class="number">${format.duration(row.total / row.count)}</td><td class="number">${format.duration(row.longest)}</td><td class="number">${format.duration(row.total)}</td></tr>`)}</tbody></table></div></${Section}>`}`;
}

function save(text, session) {
  const url = URL.createObjectURL(new Blob([text], { type: "application/json" }));
  Object.assign(document.createElement("a"), { href: url, download: `${session}.json` }).click();
  URL.revokeObjectURL(url);
}

// Perfetto's page answers a ping once it listens, and then takes the trace as a message.
function openPerfetto(text, session) {
  const tab = open(PERFETTO);
  if (!tab) return;
  const ping = setInterval(() => tab.postMessage("PING", PERFETTO), 100);
  const giveUp = setTimeout(() => clearInterval(ping), 30_000);
  const answered = (event) => {
    if (event.origin !== PERFETTO || event.data !== "PONG") return;
    clearInterval(ping);
    clearTimeout(giveUp);
    removeEventListener("message", answered);
    const buffer = new TextEncoder().encode(text).buffer;
    tab.postMessage({ perfetto: { buffer, title: `tinkex ${session}` } }, PERFETTO);
  };
  addEventListener("message", answered);
}
