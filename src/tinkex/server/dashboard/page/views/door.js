// Signing in with a key, where no link of the server's terminal led here.
import { html, useState } from "../ui.js";

export function Door({ problem, enter }) {
  const [key, setKey] = useState("");
  const [said, setSaid] = useState(problem);
  const [busy, setBusy] = useState(false);
  const submit = async (event) => {
    event.preventDefault();
    setBusy(true);
    try {
      await enter(key.trim());
    } catch (error) {
      setSaid(error.message);
      setBusy(false);
    }
  };
  return html`<main class="door" id="main"><form class="card" onSubmit=${submit}>
    <div><h1>tinkex</h1><p class="soft">Sign in to see your runs.</p></div>
    <label class="field">API key
      <input type="password" autocomplete="current-password" required autofocus value=${key} onInput=${(event) => setKey(event.target.value)} placeholder="tml-…" /></label>
    ${said && html`<p class="advice error" role="alert">${said}</p>`}
    <button class="first" disabled=${busy}>Sign in</button>
    <p class="soft small">On the server's own machine no key is needed: <code>tinkex dashboard</code> opens this page with a link that works once.</p>
  </form></main>`;
}
