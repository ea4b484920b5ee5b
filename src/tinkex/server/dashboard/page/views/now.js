// Now: the engines and their memory, what waits and why, who uses what.
import { html } from "../ui.js";
import { DASHBOARD, get, query } from "../api.js";
import { latestNow } from "../live.js";
import * as format from "../format.js";
import { Advice, Badge, Empty, Model, Problem, Section, Shares, Stat, Who, useLoaded, useNow } from "../parts.js";

const MINUTES = 15;
const PHASES = { ready: "good", asleep: "", starting: "warn", restarting: "bad", stopped: "bad" };
const STATES = { active: ["good", "Running"], paused_capacity: ["warn", "Waiting"], paused_rate_limit: ["warn", "Limited"] };
const SPEEDS = [["training", "Training"], ["prefill", "Prompts"], ["sampled", "Sampling"]];

const history = () => get(`${DASHBOARD}/server/history${query({ from: Math.floor(Date.now() / 1000) - MINUTES * 60, buckets: 60 })}`);

export function Now({ who }) {
  const first = useLoaded(() => get(`${DASHBOARD}/now`), []);
  const past = useLoaded(history, [], ["now"]);
  const now = useNow(latestNow()) ?? first.data;
  if (!now) return html`<h1>Now</h1><${Problem} error=${first.error} />`;
  const curve = (name) => past.data?.series[name]?.mean;
  return html`
    <div class="head"><h1 class="grow">Now</h1>
      <span class="soft small">up ${format.duration(now.at - now.started_at)} · ${format.bytes(now.disk?.free_bytes)} of disk free</span></div>
    <div class="stack" aria-live="polite"><${Advice} items=${now.advice} /></div>
    <div class="stats">
      ${SPEEDS.map(([kind, label]) => html`<${Stat} key=${kind} label=${label} value=${format.short(now.tokens_per_s[kind])} unit="tokens/s" spark=${curve(`${kind}_tokens_per_s`)} />`)}
      <${Stat} label="Engines busy" value=${format.percent(busy(now.engines))} spark=${curve("busy")} />
    </div>
    <div class="pair">${now.engines.map((engine) => html`<${Engine} key=${engine.name} engine=${engine} />`)}</div>
    <${Queue} entries=${now.queue} everybody=${who.sees_all} />
    <div class="pair">
      ${now.tenants.length > 0 && html`<${Tenants} tenants=${now.tenants} />`}
      ${now.limits.length > 0 && html`<${Limits} limits=${now.limits} everybody=${who.sees_all} />`}
    </div>`;
}

const busy = (engines) => {
  const known = engines.map((engine) => engine.busy).filter((value) => value !== null);
  return known.length ? known.reduce((sum, value) => sum + value, 0) / known.length : null;
};

const Engine = ({ engine }) => html`<section class="card stack" aria-label=${`Engine ${engine.name}`}>
  <div class="spread"><h2><${Model} name=${engine.name} /></h2><${Badge} kind=${PHASES[engine.phase]}>${engine.phase}</${Badge}></div>
  ${engine.reason && engine.phase !== "ready" && html`<p class="soft">${engine.reason}</p>`}
  ${engine.draining && html`<p class="soft">${engine.draining}</p>`}
  <p class="soft small">${described(engine)}</p>
  ${engine.memory?.parts?.length > 0 && html`<${Shares} parts=${engine.memory.parts} total=${engine.memory.total_bytes} label=${`Memory of ${engine.name}`} />`}
  <dl class="facts wide small">
    <${Fact} name="Busy" value=${format.percent(engine.busy)} />
    <${Fact} name="Training calls" value=${format.whole(engine.operations)} />
    <${Fact} name="Samples" value=${format.whole(engine.samples)} />
    ${engine.runs && html`<${Fact} name="Runs in memory" value=${`${engine.runs.resident} of ${engine.runs.places}`} />`}
    <${Fact} name="Adapters" value=${format.whole(engine.adapters)} />
    ${engine.cache && html`<${Fact} name="Cache pages" value=${`${format.whole(engine.cache.used_pages)} of ${format.whole(engine.cache.total_pages)}`} />`}
    ${engine.deaths > 0 && html`<${Fact} name="Restarts" value=${engine.deaths} />`}
  </dl></section>`;

const Fact = ({ name, value }) => html`<div><dt class="soft">${name}</dt><dd>${value}</dd></div>`;

const described = (engine) => [
  engine.device, engine.dtype,
  engine.parameters && `${format.short(engine.parameters)} parameters`,
  engine.max_context && `context ${format.whole(engine.max_context)}`,
].filter(Boolean).join(" · ");

const Queue = ({ entries, everybody }) => html`<${Section} id="queue" title="Queue" aside=${entries.length > 0 && html`<span class="soft small">longest wait first</span>`}>
  ${entries.length === 0 ? html`<${Empty}>Nothing waits.</${Empty}>` : html`<div class="wrap" tabindex="0" role="group" aria-labelledby="queue"><table>
    <thead><tr><th>What</th>${everybody && html`<th>Who</th>`}<th class="number">Count</th><th class="number">Waited</th><th>State</th><th>Why</th></tr></thead>
    <tbody>${entries.map((entry) => html`<tr key=${entry.kind + entry.run + entry.tenant + entry.model}>
      <td>${entry.run ? html`<a class="main" href=${`#/runs/${entry.run}`}>${format.runName(entry)}</a>` : html`<span class="main">Samples</span>`}<div class="sub"><${Model} name=${entry.engine ?? entry.model} /></div></td>
      ${everybody && html`<td><${Who} tenant=${entry.tenant} /></td>`}
      <td class="number">${format.whole(entry.count)}<div class="sub">${entry.running} running</div></td>
      <td class="number">${format.duration(entry.waited_s)}</td>
      <td><${Badge} kind=${(STATES[entry.state] ?? ["", ""])[0]}>${(STATES[entry.state] ?? ["", entry.state])[1]}</${Badge}></td>
      <td>${entry.reason}</td></tr>`)}</tbody></table></div>`}
</${Section}>`;

const Tenants = ({ tenants }) => html`<${Section} id="tenants" title="Who uses what"><div class="wrap" tabindex="0" role="group" aria-labelledby="tenants"><table>
  <thead><tr><th>Who</th><th class="number">Runs</th><th class="number">Calls</th><th class="number">Samples</th><th class="number">Trained/s</th><th class="number rest">Sampled/s</th></tr></thead>
  <tbody>${tenants.map((tenant) => html`<tr key=${tenant.tenant}><td><${Who} tenant=${tenant.tenant} /></td>
    <td class="number">${tenant.runs}</td><td class="number">${tenant.operations}</td><td class="number">${tenant.samples}</td>
    <td class="number">${format.short(tenant.tokens_per_s.training)}</td><td class="number rest">${format.short(tenant.tokens_per_s.sampled)}</td></tr>`)}</tbody>
</table></div></${Section}>`;

const Limits = ({ limits, everybody }) => html`<section class="card stack" aria-labelledby="limits"><h2 id="limits">Limits in use</h2>
  ${limits.map((limit) => html`<label key=${limit.name + limit.tenant} class="stack small">
    <span class="spread"><span>${limit.name.replaceAll("_", " ")} ${everybody && limit.tenant && html`<${Who} tenant=${limit.tenant} />`}</span>
      <span class="soft">${limitSize(limit, limit.used)} of ${limitSize(limit, limit.limit)}</span></span>
    <progress max=${limit.limit} value=${limit.used}></progress></label>`)}</section>`;

const limitSize = (limit, value) => (limit.name.includes("bytes") ? format.bytes(value) : format.whole(value));
