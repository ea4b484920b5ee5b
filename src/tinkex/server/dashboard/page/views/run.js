// One run, or several compared: curves with zoom, smoothing and a logarithmic scale; what it saved; what it came from.
import { html, useEffect, useMemo, useState } from "../ui.js";
import { get, query, runPath } from "../api.js";
import * as format from "../format.js";
import { Advice, Ago, Badge, Copy, Empty, Model, Problem, Section, Tabs, Who, useLoaded } from "../parts.js";
import { Chart } from "../plot.js";
import { Table } from "./checkpoints.js";

const FIRST = ["loss", "learning_rate", "grad_norm", "update_norm", "tokens_per_s", "entropy", "sampler_gap", "zero_advantages", "wait_s", "compute_s"];
const SUMS = /:(sum|count)$/; // what means were made of: there for who looks for it
const MOST_RUNS = 6;
const MOST_ANCESTORS = 20;
const BUCKETS = 600;
const STATES = { live: "good", stopping: "warn", ended: "" };

export function Run({ who, ids }) {
  const shown = ids.slice(0, MOST_RUNS);
  const about = useLoaded(() => Promise.all(shown.map((id) => get(runPath(id)))), [shown.join()], ["run", "point", "checkpoint"], (event) => shown.includes(event.run));
  const runs = about.data ?? [];
  return html`
    <div class="head"><a href="#/runs">Runs</a><span class="soft" aria-hidden="true">/</span>
      <h1 class="grow cut">${runs.length ? runs.map(format.runName).join(" · ") : shown.map(format.shortId).join(" · ")}</h1>
      ${runs.length === 1 && html`<${Badge} kind=${STATES[runs[0].state]}>${runs[0].state}</${Badge}>`}</div>
    <${Problem} error=${about.error} />
    ${ids.length > MOST_RUNS && html`<p class="soft">The first ${MOST_RUNS} of ${ids.length} are shown.</p>`}
    ${runs.length === 1 && html`<${About} run=${runs[0]} everybody=${who.sees_all} />`}
    ${runs.length > 1 && html`<${Compared} runs=${runs} />`}
    <${Curves} ids=${shown} runs=${runs} />
    ${runs.length === 1 && html`<${Rest} run=${runs[0]} />`}`;
}

const About = ({ run, everybody }) => html`
  <${Advice} items=${run.advice} of=${run.run} />
  <dl class="facts wide">
    <div><dt class="soft">Model</dt><dd><${Model} name=${run.model} /></dd></div>
    <div><dt class="soft">Rank</dt><dd>${run.rank}</dd></div>
    <div><dt class="soft">Step</dt><dd data-fact="step">${format.whole(run.step)}</dd></div>
    <div><dt class="soft">Loss</dt><dd data-fact="loss">${format.number(run.last_loss)}</dd></div>
    <div><dt class="soft">Trained on</dt><dd>${format.short(run.tokens)} tokens</dd></div>
    <div><dt class="soft">Started</dt><dd><${Ago} at=${run.created_at} /></dd></div>
    <div><dt class="soft">Last request</dt><dd><${Ago} at=${run.last_request_at} /></dd></div>
    ${everybody && html`<div><dt class="soft">Who</dt><dd><${Who} tenant=${run.tenant} /></dd></div>`}
  </dl>
  ${run.note && html`<p>${run.note}</p>`}
  <div class="row small"><${Copy} text=${run.run} label="Copy id" /><a href=${`#/samples/${run.run}`}>Samples</a><a href=${`#/timeline/${run.session}`}>Timeline</a></div>`;

const Compared = ({ runs }) => html`<${Section} id="compared" title="Compared"><div class="wrap" tabindex="0" role="group" aria-labelledby="compared"><table>
  <thead><tr><th>Run</th><th>Model</th><th class="number">Rank</th><th class="number">Step</th><th class="number">Loss</th><th class="number">Tokens</th></tr></thead>
  <tbody>${runs.map((run, index) => html`<tr key=${run.run}><td><span class=${`dot f${index}`}></span> <a class="main" href=${`#/runs/${run.run}`}>${format.runName(run)}</a></td>
    <td><${Model} name=${run.model} /></td><td class="number">${run.rank}</td><td class="number">${format.whole(run.step)}</td>
    <td class="number">${format.number(run.last_loss)}</td><td class="number">${format.short(run.tokens)}</td></tr>`)}</tbody></table></div></${Section}>`;

function Curves({ ids, runs }) {
  const [x, setX] = useState("step");
  const [log, setLog] = useState(false);
  const [smoothing, setSmoothing] = useState(0);
  const [range, setRange] = useState(null);
  const [sums, setSums] = useState(false);
  useEffect(() => setRange(null), [x, ids.join()]);
  const asked = { x, buckets: BUCKETS, from: range && Math.max(0, Math.floor(range[0])), to: range && Math.ceil(range[1]) };
  const { data, error } = useLoaded(
    () => Promise.all(ids.map((id) => get(`${runPath(id)}/history${query(asked)}`))),
    [ids.join(), x, range?.join()], ["point"], (event) => ids.includes(event.run));
  const charts = useMemo(() => arranged(data ?? [], ids, runs), [data, runs]);
  const zoom = (wanted) => setRange(wanted && wanted[1] > 0 ? [Math.max(0, wanted[0]), wanted[1]] : null);
  const one = (chart, tall) => html`<${Chart} key=${chart.title} ...${chart} x=${x} log=${log} smoothing=${smoothing} range=${range} onRange=${zoom} tall=${tall === true} />`;
  return html`<section class="stack curves" aria-label="Curves">
    <div class="row">
      <${Tabs} label="Horizontal axis" options=${[["step", "Step"], ["time", "Time"]]} value=${x} onChange=${setX} />
      <button type="button" aria-pressed=${log} onClick=${() => setLog(!log)}>Log scale</button>
      <label class="line">Smooth <input type="range" min="0" max="0.99" step="0.01" value=${smoothing} onInput=${(event) => setSmoothing(Number(event.target.value))} /><span>${smoothing.toFixed(2)}</span></label>
      ${range && html`<button onClick=${() => setRange(null)}>Show all</button>`}
      <span class="soft small rest">drag to zoom, double click for all</span>
      ${charts.length > 0 && html`<button class="plain small" onClick=${() => download(charts, ids)}>CSV</button>`}
    </div>
    <${Problem} error=${error} />
    ${data && charts.length === 0 && html`<div class="card"><${Empty}>No step was finished yet. Curves begin with the first <code>optim_step</code>.</${Empty}></div>`}
    ${charts.slice(0, 1).map((chart) => one(chart, true))}
    <div class="grid">${charts.slice(1).filter((chart) => !SUMS.test(chart.title)).map(one)}</div>
    ${charts.some((chart) => SUMS.test(chart.title)) && html`<details onToggle=${(event) => setSums(event.target.open)}><summary>Sums</summary>
      ${sums && html`<div class="grid">${charts.filter((chart) => SUMS.test(chart.title)).map(one)}</div>`}</details>`}
  </section>`;
}

// One chart per metric, those that people look at first in front; a run keeps its colour.
function arranged(histories, ids, runs) {
  const names = [...new Set(histories.flatMap((one) => Object.keys(one.series)))];
  const place = (name) => (FIRST.includes(name) ? FIRST.indexOf(name) : FIRST.length);
  names.sort((one, other) => place(one) - place(other) || one.localeCompare(other));
  const help = Object.fromEntries(runs.flatMap((run) => run.metrics.map((metric) => [metric.name, metric.help])));
  return names.map((title) => ({
    title,
    help: help[title],
    series: histories.flatMap((one, colour) => (one.series[title]?.x.length
      ? [{ ...one.series[title], colour, label: runs[colour] ? format.runName(runs[colour]) : ids[colour] }] : [])),
  })).filter((chart) => chart.series.length);
}

function download(charts, ids) {
  const lines = ["run,metric,x,mean,min,max,count"];
  for (const chart of charts) {
    for (const one of chart.series) one.x.forEach((x, index) => lines.push([ids[one.colour], chart.title, x, one.mean[index], one.min[index], one.max[index], one.count[index]].join()));
  }
  const url = URL.createObjectURL(new Blob([lines.join("\n")], { type: "text/csv" }));
  Object.assign(document.createElement("a"), { href: url, download: "history.csv" }).click();
  URL.revokeObjectURL(url);
}

const Rest = ({ run }) => html`
  <${Section} id="saved" title="Checkpoints"><${Table} checkpoints=${run.checkpoints} named="saved" /></${Section}>
  <div class="pair">
    <${Lineage} run=${run} />
    ${Object.keys(run.user_metadata ?? {}).length > 0 && html`<section class="card stack" aria-labelledby="metadata"><h2 id="metadata">Metadata</h2>
      <dl class="facts">${Object.entries(run.user_metadata).map(([name, value]) => html`<dt key=${name}>${name}</dt><dd>${typeof value === "string" ? value : JSON.stringify(value)}</dd>`)}</dl></section>`}
  </div>`;

const runOf = (path) => path?.replace(/^tinker:\/\//, "").split("/")[0];
const nameOf = (path) => path?.split("/").at(-1);

// Back to where the weights first came from. A run that is gone, or another's, ends the line.
async function ancestors(run) {
  const found = [];
  let { parent } = run;
  while (parent && found.length < MOST_ANCESTORS && !found.some((one) => one.run === runOf(parent))) {
    const one = await get(runPath(runOf(parent))).catch(() => null);
    found.unshift({ run: runOf(parent), name: one?.name, from: nameOf(parent), known: one !== null });
    parent = one?.parent;
  }
  return found;
}

function Lineage({ run }) {
  const { data } = useLoaded(() => ancestors(run), [run.run, run.parent]);
  if (!data?.length && !run.children.length) return null;
  const link = (one) => (one.known === false ? html`<span class="soft">${format.runName(one)} (gone)</span>` : html`<a href=${`#/runs/${one.run}`}>${format.runName(one)}</a>`);
  return html`<section class="card stack" aria-labelledby="lineage"><h2 id="lineage">Lineage</h2><ol class="stack">
    ${(data ?? []).map((one) => html`<li key=${one.run}>${link(one)} <span class="soft">at ${one.from} →</span></li>`)}
    <li><b>${format.runName(run)}</b></li>
    ${run.children.map((child) => html`<li key=${child.run}><span class="soft">→ from ${nameOf(child.parent)}</span> ${link(child)}</li>`)}
  </ol></section>`;
}
