// The page: who is signed in, which view is open, what the keyboard does.
import { html, render, useEffect, useRef, useState } from "./ui.js";
import { signIn, signOut, visitor, whenSignedOut } from "./api.js";
import * as format from "./format.js";
import * as live from "./live.js";
import { Checkpoints } from "./views/checkpoints.js";
import { Door } from "./views/door.js";
import { Now } from "./views/now.js";
import { Playground } from "./views/playground.js";
import { Runs } from "./views/runs.js";
import { Samples } from "./views/samples.js";
import { Timeline } from "./views/timeline.js";
import { Usage } from "./views/usage.js";

const VIEWS = [
  ["now", "Now", Now],
  ["runs", "Runs", Runs],
  ["samples", "Samples", Samples],
  ["playground", "Playground", Playground],
  ["timeline", "Timeline", Timeline],
  ["checkpoints", "Checkpoints", Checkpoints],
  ["usage", "Usage", Usage],
];

const place = () => {
  const [view = "", ...rest] = location.hash.replace(/^#\/?/, "").split("/").map(decodeURIComponent);
  return { view: view || "now", rest: rest.join("/") };
};

function Page() {
  const [who, setWho] = useState(undefined);
  const [problem, setProblem] = useState("");
  const [at, setAt] = useState(place());
  useEffect(() => {
    const moved = () => setAt(place());
    addEventListener("hashchange", moved);
    whenSignedOut(() => { live.stop(); setWho(null); });
    arrive().then(setWho, (error) => { setProblem(error.status === 401 ? "" : error.message); setWho(null); });
    return () => removeEventListener("hashchange", moved);
  }, []);
  useEffect(() => { if (who) live.start(); }, [who]);
  if (who === undefined) return null;
  if (who === null) return html`<${Door} problem=${problem} enter=${async (key) => setWho(await signIn({ key }))} />`;
  return html`<${Frame} who=${who} at=${at} leave=${async () => { live.stop(); await signOut(); setWho(null); }} />`;
}

// A link of the server's terminal carries a token behind the #: used once, and gone from the history.
async function arrive() {
  const token = /^#invitation=(.+)$/.exec(location.hash)?.[1];
  if (!token) return visitor();
  history.replaceState(null, "", "/");
  try {
    return await signIn({ invitation: token });
  } catch (error) {
    return visitor().catch(() => { throw Object.assign(error, { status: 0 }); });
  }
}

function Frame({ who, at, leave }) {
  const main = useRef();
  const help = useRef();
  const [, View] = VIEWS.find(([name]) => name === at.view)?.slice(1) ?? VIEWS[0].slice(1);
  const title = VIEWS.find(([name]) => name === at.view)?.[1] ?? "Now";
  useEffect(() => {
    document.title = `${title} · tinkex`;
    document.querySelector(".side nav [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
    scrollTo(0, 0);
  }, [at.view, at.rest]);
  useEffect(() => {
    const pressed = (event) => shortcut(event, help.current);
    addEventListener("keydown", pressed);
    return () => removeEventListener("keydown", pressed);
  }, []);
  return html`<div class="frame">
    <a class="skip" href="#main" onClick=${(event) => { event.preventDefault(); main.current.focus(); }}>Skip to content</a>
    <header class="side">
      <a class="brand" href="#/now">tinkex</a>
      <nav aria-label="Views"><ul>${VIEWS.map(([name, label]) => html`<li key=${name}>
        <a href=${`#/${name}`} aria-current=${name === at.view ? "page" : null}>${label}</a></li>`)}</ul></nav>
      <div class="foot">
        <div class="wide cut" title=${who.tenant}>${who.sees_all ? "Everybody's runs" : who.tenant}</div>
        <div class="row"><${Connection} />
          <span class="row"><button class="plain" onClick=${turnTheme} aria-label="Light or dark">◐</button>
          <button class="plain wide" onClick=${() => help.current.showModal()} aria-label="Keyboard shortcuts">?</button></span></div>
        <button class="plain wide" onClick=${leave}>Sign out</button>
      </div>
    </header>
    <main id="main" ref=${main} tabindex="-1"><${Away} /><${View} key=${at.view} who=${who} rest=${at.rest} /></main>
    <${Help} box=${help} />
  </div>`;
}

const STATES = {
  live: ["good live", "Live"], polling: ["good", "Polling"],
  connecting: ["", "Connecting"], reconnecting: ["warn", "Reconnecting"],
};

function Connection() {
  const [state, setState] = useState(live.connection());
  useEffect(() => live.on("connection", setState), []);
  const [kind, text] = STATES[state];
  return html`<span class=${`badge ${kind}`} role="status">${text}</span>`;
}

// Without it a dead server looks like an idle one.
function Away() {
  const [since, setSince] = useState(null);
  useEffect(() => live.on("connection", (state) => setSince(state === "reconnecting" ? Date.now() / 1000 : null)), []);
  return since && html`<p class="advice error" role="alert">The server does not answer. All this is of ${format.time(since)}.</p>`;
}

const Help = ({ box }) => html`<dialog ref=${box} aria-label="Keyboard shortcuts"><div class="stack">
  <h2>Keyboard</h2>
  <dl class="facts">
    ${VIEWS.map(([name, label], index) => html`<dt key=${name}><kbd>${index + 1}</kbd></dt><dd>${label}</dd>`)}
    <dt><kbd>/</kbd></dt><dd>Search</dd>
    <dt><kbd>t</kbd></dt><dd>Light or dark</dd>
    <dt><kbd>+</kbd> <kbd>−</kbd> <kbd>←</kbd> <kbd>→</kbd> <kbd>0</kbd></dt><dd>Zoom and move a focused curve</dd>
    <dt><kbd>?</kbd></dt><dd>This list</dd>
  </dl>
  <form method="dialog"><button class="first">Close</button></form></div></dialog>`;

function shortcut(event, help) {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest?.("input, textarea, select, dialog")) return;
  if (event.target.closest?.(".plot") && "+-0".includes(event.key)) return;
  const view = VIEWS[Number(event.key) - 1];
  if (view) location.hash = `#/${view[0]}`;
  else if (event.key === "/") document.querySelector('main input[type="search"]')?.focus();
  else if (event.key === "t") turnTheme();
  else if (event.key === "?") help.showModal();
  else return;
  event.preventDefault();
}

function turnTheme() {
  const root = document.documentElement;
  const isDark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = isDark ? "light" : "dark";
  localStorage.setItem("tinkex-theme", root.dataset.theme);
  dispatchEvent(new Event("themechange"));
}

// After the first paint of what stands in the page already; in a tab behind others nothing is painted.
const page = document.getElementById("page");
const painted = new Promise((done) => {
  requestAnimationFrame(() => setTimeout(done));
  setTimeout(done, 100);
});
painted.then(() => { page.textContent = ""; render(html`<${Page} />`, page); });
