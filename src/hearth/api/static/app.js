// The page: one connection in, one picture out. Everything that is drawn comes from `feed.state`.

import { html, render, Component } from "./vendor/htm-preact-3.1.1.module.js";
import { Orders, Question } from "./actions.js";
import { Charts, recordedSince, summary } from "./charts.js";
import { learnModels } from "./colours.js";
import { Feed } from "./feed.js";
import { duration, whole } from "./format.js";
import { Jobs } from "./jobs.js";
import { Memory } from "./memory.js";
import { Notices, standingOrders } from "./notices.js";
import { House, Limits, Recent, Running, Tiles, Waiting } from "./panels.js";
import { Panel } from "./parts.js";

const TICK_MS = 1000;
const SAID_MS = 8000;
const SPANS = [[600, "10 min"], [1800, "30 min"], [3600, "1 h"]];

class App extends Component {
  constructor() {
    super();
    this.version = 0;
    this.feed = new Feed(() => this.changed());
    this.orders = new Orders(this.feed, (said) => this.say(said));
    this.ask = (question) => this.setState({ question });
    this.state = { question: null, said: null, span: null, all: false };
  }

  componentDidMount() {
    this.feed.connect();
    this.ticking = setInterval(() => document.hidden || this.setState({}), TICK_MS);
  }

  componentDidUpdate() {
    if (!this.received) return;
    dispatchEvent(new CustomEvent("hearth-drawn", { detail: { received: this.received } })); // For whoever measures.
    this.received = 0;
  }

  changed() {
    this.version += 1;
    this.received ||= this.feed.received;
    if (!document.hidden || this.feed.link.status !== "live") this.setState({});
  }

  say(said) {
    clearTimeout(this.saying);
    this.setState({ said });
    if (!said.bad) this.saying = setTimeout(() => this.setState({ said: null }), SAID_MS);
  }

  render() {
    const { feed } = this;
    const { question, said } = this.state;
    document.title = titleOf(feed);
    return html`<${Header} feed=${feed} />
      <${Notices} feed=${feed} orders=${this.orders} ask=${this.ask} />
      <main id="main">${this.body()}</main>
      <div role="status" class=${`said ${said ? "shown" : ""} ${said?.bad ? "bad" : ""}`}>
        ${said ? html`<span>${said.text}</span><button class="icon" aria-label="Close" onClick=${() => this.setState({ said: null })}>✕</button>` : null}
      </div>
      ${question ? html`<${Question} question=${question} close=${() => this.setState({ question: null })} />` : null}`;
  }

  body() {
    const { feed } = this;
    if (feed.link.status === "locked") return html`<${Lock} feed=${feed} />`;
    if (feed.link.status === "refused") {
      return html`<div class="centre"><h1>Hearth does not let this page in</h1><p class="pre">${feed.link.reason}</p>
        <button onClick=${() => feed.connect()}>Try again</button></div>`;
    }
    if (!feed.state) {
      return html`<div class="centre"><h1>${feed.link.status === "waiting" ? "Hearth does not answer" : "Connecting"}</h1>
        <p class="muted">${feed.link.status === "waiting" ? "The page goes on trying." : "One moment."}</p></div>`;
    }
    const now = feed.now();
    learnModels(Object.keys(feed.state.models));
    const props = { state: feed.state, now, orders: this.orders, ask: this.ask };
    return html`<${Tiles} ...${props} />
      <div class="columns">
        <div class="column main"><${Running} ...${props} />${this.hour(feed.state, now)}<${Waiting} ...${props} />
          <${Jobs} ...${props} />
          <${Recent} ...${props} all=${this.state.all} toggle=${() => this.setState({ all: !this.state.all })} /></div>
        <div class="column side"><${Memory} ...${props} /><${Limits} ...${props} /><${House} ...${props} /></div>
      </div>`;
  }

  hour(state, now) {
    const span = this.state.span ?? fitting(now - recordedSince(state, now));
    const told = summary(state, now, span);
    const note = `busy ${duration(told.busy)} · ${told.swaps} ${told.swaps === 1 ? "load" : "loads"} in ${duration(told.swapping)}`
      + `${told.failed ? ` · ${told.failed} failed` : ""}${told.interruptions ? ` · ${told.interruptions} interrupted` : ""}`;
    const tools = html`<span class="legend" aria-hidden="true"><span><i class="key busy"></i>works</span><span><i class="key idle"></i>idle</span>
      <span><i class="key swap"></i>loads</span>
      <span><i class="key mark"></i>interrupted</span><span><i class="key external"></i>others wait</span><span><i class="key internal"></i>house waits</span></span>
      <span class="segmented" role="group" aria-label="Time shown">${SPANS.map(([seconds, text]) => html`<button key=${seconds}
        aria-pressed=${String(span === seconds)} onClick=${() => this.setState({ span: seconds })}>${text}</button>`)}</span>`;
    return html`<${Panel} title="What the GPU did" id="hour-title" note=${note} tools=${tools} className="hour">
      <div role="img" aria-label=${`The last ${whole(span)}: ${note}`}><${Charts} state=${state} now=${now} span=${span} version=${this.version} /></div>
    <//>`;
  }
}

// The shortest window that holds what is known.
function fitting(known) {
  return (SPANS.find(([seconds]) => known <= seconds) ?? SPANS.at(-1))[0];
}

function titleOf(feed) {
  const { state, link } = feed;
  if (link.status === "locked") return "Hearth: key needed";
  if (link.status !== "live" || !state) return "Hearth: no connection";
  const waiting = state.waiting.internal + state.waiting.external;
  const ordered = standingOrders(state.orders, feed.now()).filter(([name]) => name !== "pinned").map(([name]) => `${name}, `).join("");
  return `${ordered}${Object.keys(state.running).length} running, ${waiting} waiting | Hearth`;
}

function Header({ feed }) {
  const { state, link } = feed;
  const tone = link.status === "live" ? (state?.house.status === "ok" ? "ok" : "bad") : link.status === "connecting" ? "" : "warn";
  const words = { live: "live", connecting: "connecting", waiting: "reconnecting", locked: "key needed", refused: "refused" };
  return html`<header class="top">
    <a class="skip" href="#main">To the content</a>
    <img src="/static/flame.svg" alt="" width="24" height="24" /><h1>Hearth</h1>
    <span class="link" role="status"><span class=${`dot ${tone}`}></span>${words[link.status]}</span>
    <span class="grow"></span>
    ${state ? html`<span class="muted facts-line">${state.house.mode} hours · up ${whole(feed.now() - state.house.started)} · ${state.house.version}</span>
      <span class="muted you" title="who this page is">${state.you.caller}${state.you.admin ? " (admin)" : ""}</span>` : null}
    ${feed.key ? html`<button class="quiet" onClick=${() => feed.useKey("")}>Forget key</button>` : null}
    <button class="icon" aria-label="Switch between dark and light" title="Dark or light" onClick=${switchTheme}>◐</button>
  </header>`;
}

function switchTheme() {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
  try {
    localStorage.setItem("hearth.theme", root.dataset.theme);
  } catch {
    // Storage is off: the choice holds until the page is closed.
  }
  dispatchEvent(new Event("hearth-theme"));
}

class Lock extends Component {
  componentDidMount() {
    this.input.focus();
  }

  render({ feed }) {
    const open = (event) => {
      event.preventDefault();
      const key = this.input.value.trim();
      if (key) feed.useKey(key);
    };
    return html`<form class="centre lock" onSubmit=${open}>
      <h1>This house has keys</h1>
      <p class="muted">Yours stays in this tab and is sent to Hearth only. An admin key sees every request and may give orders.</p>
      <label for="key">Key</label>
      <input id="key" type="password" autocomplete="off" spellcheck="false" required ref=${(node) => (this.input = node)} />
      ${feed.link.reason ? html`<p class="wrong" role="alert">${feed.link.reason}</p>` : null}
      <button type="submit" class="primary">Open</button>
    </form>`;
  }
}

render(html`<${App} />`, document.getElementById("app"));
