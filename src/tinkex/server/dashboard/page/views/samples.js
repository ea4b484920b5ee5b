// Samples: what models said and what runs were trained on, token by token.
import { html, useEffect, useState } from "../ui.js";
import { DASHBOARD, get, query } from "../api.js";
import { on } from "../live.js";
import * as format from "../format.js";
import { Ago, Badge, Empty, Model, Problem, Tabs, Who } from "../parts.js";

const PAGE = 25;
const LEVELS = [0.1, 0.7, 1.6, 3, 5]; // nats a token came short of certain
const COLOURS = [["logprob", "Logprob"], ["advantage", "Advantage"], ["none", "Plain"]];

export function Samples({ who, rest }) {
  const [colours, setColours] = useState("logprob");
  const [kind, setKind] = useState("any");
  const [{ samples, recording, more }, setFound] = useState({ samples: [], recording: true, more: false });
  const [fresh, setFresh] = useState(0);
  const [error, setError] = useState(null);
  const narrowed = rest ? { run: rest } : {};
  const load = async (before) => {
    try {
      const found = await get(`${DASHBOARD}/samples${query({ ...narrowed, before, limit: PAGE })}`);
      setFound((known) => ({
        recording: found.recording,
        samples: before ? [...known.samples, ...found.samples] : found.samples,
        more: found.samples.length === PAGE,
      }));
      if (!before) setFresh(0);
      setError(null);
    } catch (problem) {
      setError(problem);
    }
  };
  useEffect(() => {
    load();
    const ends = [on("sample", (event) => (!rest || event.run === rest) && setFresh((count) => count + event.count)), on("reset", () => load())];
    return () => ends.forEach((end) => end());
  }, [rest]);
  const shown = samples.filter((one) => kind === "any" || one.kind === kind);
  return html`
    <div class="head"><h1 class="grow">Samples${rest && html` <span class="soft">of <a href=${`#/runs/${rest}`}>${format.ofRun(samples[0] ?? { run: rest })}</a></span>`}</h1>
      ${rest && html`<a href="#/samples">All</a>`}
      <${Tabs} label="Kind" options=${[["any", "All"], ["sample", "Sampled"], ["datum", "Trained on"]]} value=${kind} onChange=${setKind} />
      <${Tabs} label="Colour" options=${COLOURS} value=${colours} onChange=${setColours} /></div>
    <${Problem} error=${error} />
    <div class="row" role="status">${fresh > 0 && html`<button class="first" onClick=${() => load()}>Show ${fresh} new</button>`}<${Key} colours=${colours} /></div>
    ${!recording && html`<p class="soft">This server keeps no samples (<code>--no-record-samples</code>).</p>`}
    ${recording && shown.length === 0 && !error && html`<div class="card"><${Empty}>No samples yet. What is sampled and trained on appears here, the newest first.</${Empty}></div>`}
    ${shown.map((sample) => html`<${Sample} key=${sample.id} sample=${sample} colours=${colours} everybody=${who.sees_all} />`)}
    ${more && html`<div><button onClick=${() => load(samples.at(-1).id)}>Older</button></div>`}`;
}

const Key = ({ colours }) => {
  if (colours === "logprob") return html`<span class="key small soft">certain ${[0, 1, 2, 3, 4, 5].map((level) => html`<i key=${level} class=${`l${level}`}></i>`)} surprising</span>`;
  if (colours === "advantage") return html`<span class="key small soft">worse ${["n3", "n2", "n1", "", "a1", "a2", "a3"].map((name) => html`<i key=${name} class=${name}></i>`)} better</span>`;
  return null;
};

const Sample = ({ sample, colours, everybody }) => html`<article class="card stack">
  <div class="spread small soft"><span class="row">
      <${Badge} kind=${sample.kind === "datum" ? "" : "good"}>${sample.kind === "datum" ? "trained on" : "sampled"}</${Badge}>
      ${sample.run && html`<a href=${`#/runs/${sample.run}`}>${format.ofRun(sample)}</a>`}
      <${Model} name=${sample.model} />${everybody && html`<${Who} tenant=${sample.tenant} />`}
      ${sample.step !== null && html`<span>step ${sample.step}</span>`}
      ${sample.of > 1 && html`<span>${sample.index + 1} of ${sample.of}</span>`}</span>
    <span class="row">${sample.finish_reason && html`<span>${sample.finish_reason}</span>`}${mean(sample.output.logprobs)}<${Ago} at=${sample.at} /></span></div>
  <div class="tokens" tabindex="0" role="group" aria-label="Text"><span class="prompt">${sample.prompt.left_out > 0 && `… ${sample.prompt.left_out} tokens … `}${sample.prompt.text ?? sample.prompt.tokens.join(" ")}</span><${Output} output=${sample.output} colours=${colours} />${sample.output.left_out > 0 && html`<span class="prompt"> … ${sample.output.left_out} tokens</span>`}</div>
</article>`;

function mean(logprobs) {
  const known = (logprobs ?? []).filter((value) => value !== null);
  if (!known.length) return null;
  const value = known.reduce((sum, one) => sum + one, 0) / known.length;
  return html`<span title="mean logprob of a token">${format.number(value, 3)} per token</span>`;
}

function Output({ output, colours }) {
  const pieces = output.pieces ?? output.tokens.map((token) => `${token} `);
  const largest = Math.max(...(output.advantages ?? []).map(Math.abs), 1e-9);
  return pieces.map((piece, index) => {
    const logprob = output.logprobs?.[index];
    const advantage = output.advantages?.[index];
    const shade = colours === "logprob" ? byLogprob(logprob) : colours === "advantage" ? byAdvantage(advantage, largest) : "";
    const about = [`token ${output.tokens[index]}`, known(logprob) && `logprob ${format.number(logprob)}`, known(advantage) && `advantage ${format.number(advantage)}`];
    return html`<span key=${index} class=${shade} title=${about.filter(Boolean).join("\n")}>${piece}</span>`;
  });
}

const known = (value) => value !== null && value !== undefined;
const byLogprob = (logprob) => (known(logprob) ? `l${LEVELS.filter((level) => -logprob > level).length}` : "");
function byAdvantage(advantage, largest) {
  if (!advantage) return "";
  return `${advantage > 0 ? "a" : "n"}${Math.min(3, Math.ceil((Math.abs(advantage) / largest) * 3))}`;
}
