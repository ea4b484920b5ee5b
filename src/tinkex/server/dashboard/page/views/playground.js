// Playground: one prompt to one or two models, bases or saved samplers, side by side, as tokens come.
import { html, useEffect, useRef, useState } from "../ui.js";
import { DASHBOARD, call, get, query } from "../api.js";
import * as format from "../format.js";
import { Problem, Tabs, useLoaded } from "../parts.js";

const FIRST = { temperature: 0.7, top_p: 1, max_tokens: 256, seed: "" };

async function choices() {
  const [now, saved] = await Promise.all([get(`${DASHBOARD}/now`), get(`${DASHBOARD}/checkpoints${query({ limit: 500 })}`)]);
  const samplers = saved.checkpoints.filter((one) => one.kind === "sampler_weights");
  return { bases: [...new Set(now.engines.map((engine) => engine.model))], samplers };
}

export function Playground({ rest }) {
  const { data, error } = useLoaded(choices, [], ["checkpoint"]);
  const [mode, setMode] = useState("chat");
  const [settings, setSettings] = useState(FIRST);
  const [models, setModels] = useState([rest || "", ""]);
  const [prompt, setPrompt] = useState("");
  const [system, setSystem] = useState("");
  const [asked, setAsked] = useState(null);
  useEffect(() => { if (rest) setModels(([, second]) => [rest, second]); }, [rest]);
  useEffect(() => { if (data && !models[0]) setModels(([, second]) => [data.bases[0] ?? "", second]); }, [data]);
  const choose = (index, value) => setModels((before) => before.map((one, place) => (place === index ? value : one)));
  const send = (event) => {
    event.preventDefault();
    if (prompt) setAsked({ number: (asked?.number ?? 0) + 1, mode, prompt, system, settings });
    if (mode === "chat") setPrompt("");
  };
  const set = (name) => (event) => setSettings({ ...settings, [name]: event.target.value });
  return html`
    <div class="head"><h1 class="grow">Playground</h1><${Tabs} label="Form" options=${[["chat", "Chat"], ["completion", "Completion"]]} value=${mode} onChange=${(value) => { setMode(value); setAsked(null); }} /></div>
    <${Problem} error=${error} />
    <form class="card stack" onSubmit=${send}>
      <div class="row">${[0, 1].map((index) => html`<label key=${index} class="field">${index === 0 ? "Model" : "Beside it"}
        <select value=${models[index]} onChange=${(event) => choose(index, event.target.value)}>
          ${index === 1 && html`<option value="">None</option>`}
          <optgroup label="Base models">${(data?.bases ?? []).map((name) => html`<option key=${name} value=${name}>${name}</option>`)}</optgroup>
          ${data?.samplers.length > 0 && html`<optgroup label="Saved samplers">${data.samplers.map((one) => html`<option key=${one.path} value=${one.path}>${called(one.path, data)}</option>`)}</optgroup>`}
        </select></label>`)}
        <label class="field">Temperature<input type="number" min="0" max="2" step="0.1" value=${settings.temperature} onInput=${set("temperature")} /></label>
        <label class="field">Top p<input type="number" min="0.01" max="1" step="0.01" value=${settings.top_p} onInput=${set("top_p")} /></label>
        <label class="field">Most tokens<input type="number" min="1" max="32768" value=${settings.max_tokens} onInput=${set("max_tokens")} /></label>
        <label class="field">Seed<input type="number" min="0" placeholder="any" value=${settings.seed} onInput=${set("seed")} /></label>
      </div>
      ${mode === "chat" && html`<label class="field">System message<input value=${system} onInput=${(event) => setSystem(event.target.value)} placeholder="none" /></label>`}
      <label class="field">${mode === "chat" ? "Message" : "Text to continue"}<textarea value=${prompt} onInput=${(event) => setPrompt(event.target.value)}
        onKeyDown=${(event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) send(event); }}></textarea></label>
      <div class="row"><button class="first" disabled=${!prompt || !models[0]}>Send</button><span class="soft small">Ctrl-Enter</span></div>
    </form>
    <div class="pair">${models.map((model, index) => model && html`<${Lane} key=${index + mode} model=${model} name=${called(model, data)} asked=${asked} />`)}</div>`;
}

// What one model was asked and answered. A new question ends the answer to the one before.
function Lane({ model, name, asked }) {
  const [turns, setTurns] = useState([]);
  const [state, setState] = useState({ busy: false, error: null, speed: null });
  const ending = useRef(null);
  useEffect(() => setTurns([]), [model]);
  useEffect(() => () => ending.current?.abort(), []);
  useEffect(() => { if (asked) answer(); }, [asked?.number]);
  const answer = async () => {
    ending.current?.abort();
    const control = ending.current = new AbortController();
    const before = asked.mode === "chat" ? [...turns, { role: "user", content: asked.prompt }] : [{ role: "text", content: asked.prompt }];
    const begun = performance.now();
    let text = "";
    let count = 0;
    setTurns([...before, { role: "assistant", content: "" }]);
    setState({ busy: true, error: null, speed: null });
    try {
      for await (const chunk of streamed(model, asked, before, control.signal)) {
        const choice = chunk.choices?.[0];
        if (!choice) continue;
        text += choice.delta?.content ?? choice.text ?? "";
        count += 1;
        setTurns([...before, { role: "assistant", content: text, finish: choice.finish_reason }]);
      }
      setState({ busy: false, error: null, speed: { chunks: count, seconds: (performance.now() - begun) / 1000 } });
    } catch (error) {
      if (ending.current === control) setState({ busy: false, error: control.signal.aborted ? null : error, speed: null });
    }
  };
  return html`<section class="card stack" aria-label=${`Answers of ${model}`}>
    <div class="spread"><h2 class="cut" title=${model}>${name}</h2><span class="row small soft">
      ${state.busy && html`<button class="plain" onClick=${() => ending.current.abort()}>Stop</button>`}
      ${state.speed && html`<span>${format.duration(state.speed.seconds)}</span>`}
      ${turns.length > 0 && !state.busy && html`<button class="plain" onClick=${() => setTurns([])}>Clear</button>`}</span></div>
    <${Problem} error=${state.error} />
    <div class="talk" role="log" aria-live="polite" aria-busy=${state.busy}>${turns.map((turn, index) => html`<div key=${index} class=${`turn ${turn.role}`}>
      <span class="who">${turn.role === "assistant" ? "answer" : turn.role}${turn.finish && ` · ${turn.finish}`}</span>${turn.content || (state.busy ? "…" : "")}</div>`)}
      ${turns.length === 0 && html`<p class="soft">Nothing was asked yet.</p>`}</div></section>`;
}

// A path is the same everywhere; a run's name is what its owner knows it by.
const called = (model, data) => {
  const [run, , name] = model.replace("tinker://", "").split("/");
  const known = data?.samplers.find((one) => one.path === model);
  return model.startsWith("tinker://") ? `${format.ofRun(known ?? { run })} · ${name}` : model;
};

async function* streamed(model, asked, turns, signal) {
  const { settings } = asked;
  const body = { model, stream: true, temperature: Number(settings.temperature), top_p: Number(settings.top_p), max_tokens: Number(settings.max_tokens) };
  if (settings.seed !== "") body.seed = Number(settings.seed);
  const system = asked.system ? [{ role: "system", content: asked.system }] : [];
  const messages = [...system, ...turns.map(({ role, content }) => ({ role, content }))];
  const response = asked.mode === "chat"
    ? await call("/v1/chat/completions", { json: { ...body, messages }, signal })
    : await call("/v1/completions", { json: { ...body, prompt: asked.prompt }, signal });
  let rest = "";
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split(/\r?\n/);
    rest = lines.pop();
    for (const line of lines) {
      if (!line.startsWith("data:") || line.includes("[DONE]")) continue;
      const chunk = JSON.parse(line.slice(5));
      if (chunk.error) throw new Error(chunk.error.message);
      yield chunk;
    }
  }
}
