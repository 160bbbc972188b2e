// The page. Everything that is drawn comes from `feed.state`.

import { html, render, Component } from "./vendor/htm-preact-3.1.1.module.js";
import { Orders, Question } from "./actions.js";
import { BASE } from "./base.js";
import { Charts, recordedSince, summary } from "./charts.js";
import { learnModels } from "./colours.js";
import { Detail } from "./detail.js";
import { Feed } from "./feed.js";
import { clock, duration, whole } from "./format.js";
import { Help, listen } from "./help.js";
import { History } from "./history.js";
import { Jobs } from "./jobs.js";
import { Memory } from "./memory.js";
import { Alerts, Notices, standingOrders } from "./notices.js";
import { Gateway, Limits, Recent, Running, Tiles, Waiting } from "./panels.js";
import { Panel } from "./parts.js";
import { Playground } from "./playground.js";

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
    this.show = (item) => this.setState({ open: "detail", item });
    this.close = () => this.setState({ open: null, item: null });
    this.state = { question: null, said: null, span: null, all: false, open: null, item: null, filter: "", grouped: null, refused: false, wall: new URLSearchParams(location.search).has("wall") };
  }

  componentDidMount() {
    this.feed.connect();
    this.ticking = setInterval(() => document.hidden || this.setState({}), TICK_MS);
    const span = (index) => () => this.setState({ span: SPANS[index][0] });
    listen({
      "/": () => document.getElementById("filter")?.focus(), Escape: () => (this.setState({ filter: "" }), document.activeElement?.blur()), "?": () => this.setState({ open: "help" }),
      p: () => this.feed.state && this.setState({ open: "playground" }), h: () => this.feed.state && this.setState({ open: "history" }), w: () => this.toggleWall(), t: switchTheme, 1: span(0), 2: span(1), 3: span(2),
    });
  }

  toggleWall() {
    const wall = !this.state.wall;
    history.replaceState(null, "", wall ? "?wall" : location.pathname);
    this.setState({ wall });
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
    const { question, said, open, wall } = this.state;
    document.title = titleOf(feed);
    document.body.classList.toggle("wall", wall);
    const stale = feed.state && feed.link.status !== "live" && feed.link.status !== "connecting";
    const down = feed.state && !feed.state.house.backend.up;
    return html`<${Header} feed=${feed} app=${this} />
      <${Notices} feed=${feed} orders=${this.orders} ask=${wall ? null : this.ask} />
      <main id="main" class=${`${stale ? "stale" : ""} ${down ? "down" : ""}`}>${this.body()}</main>
      <div role="status" class=${`said ${said ? "shown" : ""} ${said?.bad ? "bad" : ""}`}>
        ${said ? html`<span>${said.text}</span><button class="icon" aria-label="Close" onClick=${() => this.setState({ said: null })}>✕</button>` : null}
      </div>
      ${question ? html`<${Question} question=${question} close=${() => this.setState({ question: null })} />` : null}
      ${open === "help" ? html`<${Help} close=${this.close} />` : null}
      ${open === "detail" && feed.state ? html`<${Detail} state=${feed.state} now=${feed.now()} shown=${this.state.item} close=${this.close} />` : null}
      ${open === "history" && feed.state ? html`<${History} now=${feed.now()} feed=${feed} close=${this.close} />` : null}
      ${open === "playground" && feed.state ? html`<${Playground} state=${feed.state} now=${feed.now()} feed=${feed} close=${this.close} />` : null}`;
  }

  body() {
    const { feed } = this;
    if (feed.link.status === "locked") return html`<${Lock} feed=${feed} />`;
    if (feed.link.status === "refused") {
      return html`<div class="centre" key="centre"><h1>Hearth refused this page</h1><p class="pre">${feed.link.reason}</p>
        <button onClick=${() => feed.connect()}>Try again</button></div>`;
    }
    if (!feed.state) {
      return html`<div class="centre" key="centre"><h1>${feed.link.status === "waiting" ? "Hearth does not answer" : "Connecting"}</h1>
        <p class="muted">${feed.link.status === "waiting" ? "The page keeps trying to connect." : "One moment."}</p></div>`;
    }
    const now = feed.now();
    learnModels(Object.keys(feed.state.models));
    const { wall, filter } = this.state;
    const wanted = filter.trim().toLowerCase();
    const matches = (item) => !wanted || `${item.caller} ${item.model ?? ""} ${item.task_type ?? ""}`.toLowerCase().includes(wanted);
    const props = { state: feed.state, now, orders: this.orders, ask: wall ? null : this.ask, show: wall ? null : this.show, matches };
    const waiting = html`<${Waiting} ...${props} grouped=${wall ? true : this.state.grouped} group=${wall ? null : (grouped) => this.setState({ grouped })} />`;
    if (wall) {
      return html`<${Tiles} ...${props} /><div class="columns" key="columns"><div class="column main"><${Running} ...${props} />${this.hour(feed.state, now)}</div>
        <div class="column side">${waiting}<${Memory} ...${props} /></div></div>`;
    }
    return html`<${Tiles} ...${props} />
      <div class="columns" key="columns">
        <div class="column main"><${Running} ...${props} />${this.hour(feed.state, now)}${waiting}
          <${Jobs} ...${props} />
          <${Recent} ...${props} all=${this.state.all} toggle=${() => this.setState({ all: !this.state.all })} refused=${this.state.refused}
            choose=${(refused) => this.setState({ refused })} /></div>
        <div class="column side"><${Alerts} ...${props} /><${Memory} ...${props} /><${Limits} ...${props} /><${Gateway} ...${props} /></div>
      </div>`;
  }

  hour(state, now) {
    const span = this.state.span ?? fitting(now - recordedSince(state, now));
    const told = summary(state, now, span);
    const note = `busy ${duration(told.busy)} · ${told.swaps} ${told.swaps === 1 ? "load" : "loads"} in ${duration(told.swapping)}`
      + `${told.cut ? ` · ${told.cut} cut` : ""}${told.failed ? ` · ${told.failed} failed` : ""}${told.interruptions ? ` · ${told.interruptions} interrupted` : ""}`;
    const tools = html`<span class="legend" aria-hidden="true"><span><i class="key busy"></i>busy</span><span><i class="key idle"></i>idle</span>
      <span><i class="key swap"></i>loading</span>${(state.timeline.gaps ?? []).some((gap) => gap[1] > now - span) ? html`<span><i class="key gap"></i>not recorded</span>` : null}
      <span><i class="key mark"></i>interrupted</span><span><i class="key external"></i>external waiting</span><span><i class="key internal"></i>internal waiting</span></span>
      ${this.state.wall ? null : html`<span class="segmented" role="group" aria-label="Time shown">${SPANS.map(([seconds, text]) => html`<button key=${seconds}
        aria-pressed=${String(span === seconds)} onClick=${() => this.setState({ span: seconds })}>${text}</button>`)}</span>`}`;
    return html`<${Panel} title="GPU timeline" id="hour-title" note=${note} tools=${tools} className="hour">
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
  const ordered = standingOrders(state, feed.now()).filter(([name]) => name !== "pinned").map(([name]) => `${name}, `).join("");
  return `${ordered}${Object.keys(state.running).length} running, ${waiting} waiting | Hearth`;
}

function Header({ feed, app }) {
  const { state, link } = feed;
  const tone = link.status === "live" ? (state?.house.status === "ok" ? "ok" : "bad") : link.status === "connecting" ? "" : "warn";
  const words = { live: "live", connecting: "connecting", waiting: "reconnecting", locked: "sign-in needed", refused: "refused" };
  const { wall, filter } = app.state;
  return html`<header class="top">
    <a class="skip" href="#main">Skip to content</a>
    <img src=${`${BASE}/static/flame.svg`} alt="" width="24" height="24" /><h1>Hearth</h1>
    <span class="link" role="status"><span class=${`dot ${tone}`}></span>${words[link.status]}${link.status === "waiting" && state ? `, last data ${clock(link.since / 1000)}` : ""}</span>
    <span class="grow"></span>
    ${link.status !== "locked" && !wall ? html`<input id="filter" type="search" placeholder="Filter by caller or model ( / )" aria-label="Filter by caller or model" value=${filter}
      onInput=${(event) => app.setState({ filter: event.target.value })} />
      <button class="quiet" disabled=${!state} onClick=${() => app.setState({ open: "history" })}>History</button>
      <button class="quiet" disabled=${!state} onClick=${() => app.setState({ open: "playground" })}>Playground</button>` : null}
    <span class="muted facts-line">${state ? `${state.house.mode} hours · up ${whole(feed.now() - state.house.started)} · ${state.house.version}` : null}</span>
    <span class="muted you" title="signed in as">${state ? `${state.you.caller}${state.you.admin ? " (admin)" : ""}` : null}</span>
    ${feed.key && !wall ? html`<button class="quiet" onClick=${() => feed.useKey("")}>Sign out</button>` : null}
    <button class="icon" aria-label=${wall ? "Leave the wall view" : "Wall view"} title="Wall view (w)" onClick=${() => app.toggleWall()}>▦</button>
    <button class="icon" aria-label="Keyboard shortcuts" title="Keyboard shortcuts (?)" onClick=${() => app.setState({ open: "help" })}>?</button>
    <button class="icon" aria-label="Switch between dark and light" title="Dark or light (t)" onClick=${switchTheme}>◐</button>
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
      if (key) feed.useKey(key, this.remember.checked);
    };
    return html`<form class="centre lock" onSubmit=${open}>
      <h1>Sign in</h1>
      <p class="muted">Enter an API key. It is sent to Hearth only. An admin key sees every request and can use the admin commands.</p>
      <label for="key">Key</label>
      <input id="key" type="password" autocomplete="off" spellcheck="false" required ref=${(node) => (this.input = node)} />
      ${feed.link.reason ? html`<p class="wrong" role="alert">${feed.link.reason}</p>` : null}
      <label class="check"><input type="checkbox" ref=${(node) => (this.remember = node)} /> Stay signed in on this device (for a wall display, use a key without admin rights)</label>
      <button type="submit" class="primary">Sign in</button>
    </form>`;
  }
}

render(html`<${App} />`, document.getElementById("app"));
