// Checkpoints: what was saved, how large it is, until when it is kept, and what to type to use it.
import { html, useState } from "../ui.js";
import { DASHBOARD, get, query } from "../api.js";
import * as format from "../format.js";
import { Ago, Badge, Copy, Empty, Model, Problem, Section, Who, useLoaded } from "../parts.js";

const PAGE = 100;
const KINDS = { weights: "training", sampler_weights: "sampler", external_weights: "export" };

export function Checkpoints({ who }) {
  const [limit, setLimit] = useState(PAGE);
  const [typed, setTyped] = useState("");
  const { data, error } = useLoaded(() => get(`${DASHBOARD}/checkpoints${query({ limit })}`), [limit], ["checkpoint"]);
  const wanted = (data?.checkpoints ?? []).filter((one) => `${one.path} ${one.run_name} ${one.model} ${one.tenant}`.toLowerCase().includes(typed.toLowerCase()));
  const size = wanted.reduce((sum, one) => sum + one.size_bytes, 0);
  return html`
    <div class="head"><h1 class="grow whole">Checkpoints</h1>
      <input type="search" aria-label="Search checkpoints" placeholder="Path, run, model or user" value=${typed} onInput=${(event) => setTyped(event.target.value)} /></div>
    <${Problem} error=${error} />
    ${data && html`<${Section} id="checkpoints" title=${`${wanted.length === data.checkpoints.length ? data.cursor.total_count : wanted.length} checkpoints`} aside=${html`<span class="soft small">${format.bytes(size)} shown</span>`}>
      <${Table} checkpoints=${wanted} everybody=${who.sees_all} named="checkpoints" withRun />
    </${Section}>`}
    ${data && data.cursor.total_count > data.checkpoints.length && html`<div><button onClick=${() => setLimit(limit + PAGE)}>Show more</button></div>`}`;
}

export const Table = ({ checkpoints, everybody, named, withRun }) => (checkpoints.length === 0
  ? html`<${Empty}>Nothing was saved. <code>training.save_state("name")</code></${Empty}>`
  : html`<div class="wrap" tabindex="0" role="group" aria-labelledby=${named}><table>
    <thead><tr><th>Name</th>${withRun && html`<th>Run</th><th class="rest less">Model</th>`}${everybody && withRun && html`<th class="rest">Who</th>`}
      <th class="number">Step</th><th class="number">Size</th><th>Expires</th><th class="rest less">Saved</th><th>To use it</th></tr></thead>
    <tbody>${checkpoints.map((one) => html`<tr key=${one.path}>
      <td><span class="main" title=${one.name}>${one.name}</span> <${Badge}>${KINDS[one.kind] ?? one.kind}</${Badge}>${one.public && html` <${Badge} kind="good">public</${Badge}>`}</td>
      ${withRun && html`<td><a href=${`#/runs/${one.run}`}>${format.ofRun(one)}</a></td><td class="rest less"><${Model} name=${one.model} /></td>`}
      ${everybody && withRun && html`<td class="rest"><${Who} tenant=${one.tenant} /></td>`}
      <td class="number">${format.whole(one.step)}</td>
      <td class="number">${format.bytes(one.size_bytes)}</td>
      <td><span class="nowrap" title=${format.time(one.expires_at)}>${format.until(one.expires_at)}</span></td>
      <td class="rest less"><${Ago} at=${one.created_at} /></td>
      <td><${Use} checkpoint=${one} /></td></tr>`)}</tbody></table></div>`);

function Use({ checkpoint }) {
  const { path } = checkpoint;
  const here = `--base-url ${location.origin}`;
  const lines = checkpoint.kind === "weights"
    ? [["Train on", `training = service.create_training_client_from_state_with_optimizer("${path}")`]]
    : [["Talk to it", `tinkex chat ${here} ${path}`], ["Sample", `sampler = service.create_sampling_client(model_path="${path}")`]];
  lines.push(["Download", `tinkex checkpoint download ${here} ${path}`]);
  return html`<details class="small"><summary>Show</summary><div class="stack">
    ${lines.map(([label, text]) => html`<div key=${label}><div class="soft">${label}</div><${Copy} text=${text} /></div>`)}
    ${checkpoint.kind === "sampler_weights" && html`<a href=${`#/playground/${path}`}>Try it in the playground</a>`}
  </div></details>`;
}
