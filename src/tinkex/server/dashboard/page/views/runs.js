// Runs: all of them with their curves in small; several can be picked and compared.
import { html, useEffect, useState } from "../ui.js";
import { DASHBOARD, get, query } from "../api.js";
import * as format from "../format.js";
import { adviceName, Ago, Badge, Empty, Model, Problem, Section, Spark, Tabs, Who, useLoaded } from "../parts.js";
import { Run } from "./run.js";

const PAGE = 50;
const STATES = { live: "good", stopping: "warn", ended: "" };

export function Runs({ who, rest }) {
  return rest ? html`<${Run} who=${who} ids=${rest.split(",")} />` : html`<${List} who=${who} />`;
}

function List({ who }) {
  const [typed, setTyped] = useState("");
  const [search, setSearch] = useState("");
  const [state, setState] = useState("any");
  const [limit, setLimit] = useState(PAGE);
  const [picked, setPicked] = useState([]);
  useEffect(() => {
    const timer = setTimeout(() => setSearch(typed.trim()), 200);
    return () => clearTimeout(timer);
  }, [typed]);
  const { data, error } = useLoaded(
    () => get(`${DASHBOARD}/runs${query({ limit, state, search })}`), [limit, state, search], ["run", "point"]);
  const pick = (run) => setPicked((before) => (before.includes(run) ? before.filter((one) => one !== run) : [...before, run]));
  return html`
    <div class="head"><h1 class="grow">Runs</h1>
      <input type="search" aria-label="Search runs" placeholder="Name, id, model or note" value=${typed} onInput=${(event) => setTyped(event.target.value)} />
      <${Tabs} label="State" options=${[["any", "All"], ["live", "Live"], ["ended", "Ended"]]} value=${state} onChange=${setState} /></div>
    <${Problem} error=${error} />
    ${picked.length > 0 && html`<div class="row" role="status"><span class="soft">${picked.length} picked</span>
      ${picked.length > 1 && html`<a class="button" href=${`#/runs/${picked.join(",")}`}>Compare</a>`}
      <button class="plain" onClick=${() => setPicked([])}>Clear</button></div>`}
    ${data && html`<${Section} id="runs" title=${counted(data.cursor.total_count)}>
      ${data.runs.length === 0 ? html`<${Nothing} filtered=${search || state !== "any"} />` : html`<${Table} runs=${data.runs} everybody=${who.sees_all} picked=${picked} pick=${pick} />`}
    </${Section}>`}
    ${data && data.cursor.total_count > data.runs.length && html`<div><button onClick=${() => setLimit(limit + PAGE)}>Show more</button></div>`}`;
}

const counted = (count) => (count === 1 ? "1 run" : `${count} runs`);

const Nothing = ({ filtered }) => (filtered
  ? html`<${Empty}>No run is like that.</${Empty}>`
  : html`<${Empty}>No runs yet. Start one:<br /><code>training = tinkex.ServiceClient(base_url="${location.origin}").create_lora_training_client(…)</code></${Empty}>`);

const Table = ({ runs, everybody, picked, pick }) => html`<div class="wrap" tabindex="0" role="group" aria-labelledby="runs"><table>
  <thead><tr><th><span class="hidden">Pick</span></th><th>Run</th>${everybody && html`<th class="rest">Who</th>`}<th class="rest">Model</th>
    <th class="number">Step</th><th class="number">Loss</th><th>Curve</th><th class="number rest less">Tokens/s</th><th class="rest less">Last request</th><th>State</th></tr></thead>
  <tbody>${runs.map((run) => html`<tr key=${run.run}>
    <td><input type="checkbox" aria-label=${`Pick ${format.runName(run)}`} checked=${picked.includes(run.run)} onChange=${() => pick(run.run)} /></td>
    <td><a class="main" title=${format.runName(run)} href=${`#/runs/${run.run}`}>${format.runName(run)}</a>
      ${run.advice.length > 0 && html` <span class="badge warn" title=${run.advice.map((one) => one.text).join("\n")}>${adviceName(run.advice[0])}</span>`}
      <div class="sub cut">${run.note || (run.name ? format.shortId(run.run) : "")}</div></td>
    ${everybody && html`<td class="rest"><${Who} tenant=${run.tenant} /></td>`}
    <td class="rest"><${Model} name=${run.model} /><div class="sub">rank ${run.rank}</div></td>
    <td class="number">${format.whole(run.step)}</td>
    <td class="number">${format.number(run.last_loss)}</td>
    <td><${Spark} y=${run.spark?.y} label=${`loss of ${format.runName(run)}`} /></td>
    <td class="number rest less">${format.short(run.tokens_per_s)}</td>
    <td class="rest less"><${Ago} at=${run.last_request_at} /></td>
    <td><${Badge} kind=${STATES[run.state]}>${run.state}</${Badge}></td></tr>`)}</tbody></table></div>`;
