// Usage: tokens by the hour and by kind, and what is stored.
import { html, useState } from "../ui.js";
import { DASHBOARD, get, query } from "../api.js";
import * as format from "../format.js";
import { Empty, Model, Problem, Section, Stat, Tabs, Who, useLoaded } from "../parts.js";

const KINDS = [["training", "Trained"], ["prefill", "Prompts"], ["sampled", "Sampled"]];
const SPANS = [["24", "Day"], ["168", "Week"], ["336", "Two weeks"]];
const HOUR_S = 3600;

export function Usage({ who }) {
  const [hours, setHours] = useState("24");
  const { data, error } = useLoaded(() => get(`${DASHBOARD}/usage${query({ hours })}`), [hours]);
  const total = (kind) => (data?.usage ?? []).reduce((sum, one) => sum + one[kind], 0);
  return html`
    <div class="head"><h1 class="grow">Usage</h1><${Tabs} label="Span" options=${SPANS} value=${hours} onChange=${setHours} /></div>
    <${Problem} error=${error} />
    ${data && html`
      <div class="stats">${KINDS.map(([kind, label]) => html`<${Stat} key=${kind} label=${label} value=${format.short(total(kind))} unit="tokens" />`)}
        <${Stat} label="Prompt tokens from cache" value=${format.percent(total("prefill") + total("prefill_cached") ? total("prefill_cached") / (total("prefill") + total("prefill_cached")) : null)} /></div>
      <section class="card stack" aria-labelledby="hours"><div class="spread"><h2 id="hours">By the hour</h2>
        <div class="legend">${KINDS.map(([kind, label], index) => html`<span key=${kind}><span class=${`dot f${index}`}></span>${label}</span>`)}</div></div>
        <${Hours} usage=${data.usage} hours=${Number(hours)} /></section>
      <${ByTenant} usage=${data.usage} everybody=${who.sees_all} />
      <${Stored} storage=${data.storage} />`}`;
}

function Hours({ usage, hours }) {
  const last = Math.floor(Date.now() / 1000 / HOUR_S) * HOUR_S;
  const sums = new Map(Array.from({ length: hours }, (_, index) => [last - (hours - 1 - index) * HOUR_S, { training: 0, prefill: 0, sampled: 0 }]));
  for (const one of usage) {
    const sum = sums.get(one.hour);
    if (sum) KINDS.forEach(([kind]) => { sum[kind] += one[kind]; });
  }
  const most = Math.max(...[...sums.values()].map((sum) => sum.training + sum.prefill + sum.sampled), 0);
  const width = 1000 / hours;
  return html`<svg class="bars" viewBox="0 0 1000 180" preserveAspectRatio="none" role="img" aria-label=${`Tokens by the hour, at most ${format.short(most)}`}>
    ${[...sums].flatMap(([hour, sum], column) => {
      let below = 0;
      return KINDS.map(([kind, label], index) => {
        const height = (sum[kind] / most) * 176;
        below += height;
        return height > 0 && html`<rect key=${hour + kind} class=${`f${index}`} x=${column * width + width * 0.1} y=${180 - below} width=${width * 0.8} height=${height}><title>${`${format.hour(hour)}: ${format.whole(sum[kind])} ${label.toLowerCase()}`}</title></rect>`;
      });
    })}</svg>
    <div class="spread small soft"><span>${format.hour(last - (hours - 1) * HOUR_S)}</span><span>most in an hour: ${format.short(most)}</span><span>${format.hour(last)}</span></div>`;
}

function ByTenant({ usage, everybody }) {
  const rows = new Map();
  for (const one of usage) {
    const row = rows.get(one.tenant + one.model) ?? { tenant: one.tenant, model: one.model, training: 0, prefill: 0, prefill_cached: 0, sampled: 0 };
    for (const kind of ["training", "prefill", "prefill_cached", "sampled"]) row[kind] += one[kind];
    rows.set(one.tenant + one.model, row);
  }
  return html`<${Section} id="used" title="Tokens"><div class="wrap" tabindex="0" role="group" aria-labelledby="used">${rows.size === 0 ? html`<${Empty}>Nothing was used in this time.</${Empty}>` : html`<table>
    <thead><tr>${everybody && html`<th>Who</th>`}<th>Model</th><th class="number">Trained</th><th class="number">Prompts</th><th class="number">From cache</th><th class="number">Sampled</th></tr></thead>
    <tbody>${[...rows.values()].map((row) => html`<tr key=${row.tenant + row.model}>${everybody && html`<td><${Who} tenant=${row.tenant} /></td>`}<td><${Model} name=${row.model} /></td>
      <td class="number">${format.whole(row.training)}</td><td class="number">${format.whole(row.prefill)}</td><td class="number">${format.whole(row.prefill_cached)}</td><td class="number">${format.whole(row.sampled)}</td></tr>`)}</tbody></table>`}</div></${Section}>`;
}

const Stored = ({ storage }) => storage.length > 0 && html`<${Section} id="stored" title="Stored now"><div class="wrap" tabindex="0" role="group" aria-labelledby="stored"><table>
  <thead><tr><th>Who</th><th class="number">Checkpoints</th><th class="number">Size</th></tr></thead>
  <tbody>${storage.map((one) => html`<tr key=${one.tenant}><td><${Who} tenant=${one.tenant} /></td><td class="number">${format.whole(one.checkpoints)}</td><td class="number">${format.bytes(one.bytes)}</td></tr>`)}</tbody></table></div></${Section}>`;
