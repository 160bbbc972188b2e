// The frame of every page: header, notices, dialogs, and the page that the address names.

import { html, render, Component } from "./vendor/htm-preact-3.1.1.module.js";
import { Orders, Question } from "./actions.js";
import { BASE } from "./base.js";
import { learnModels } from "./colours.js";
import { Feed } from "./feed.js";
import { clock, whole } from "./format.js";
import { Help, listen } from "./help.js";
import { Icon } from "./icons.js";
import { Lock } from "./lock.js";
import { ModeSwitch } from "./modes.js";
import { Notices } from "./notices.js";
import { PAGES, pageOf } from "./pages.js";
import { Link, follow, go, here } from "./router.js";
import { standingOrders } from "./standing.js";

const TICK_MS = 1000;
const SAID_MS = 8000;
const KEYED = PAGES.filter((page) => page.key);
const OPENING = KEYED.map(({ key, title }) => [key, `Open ${title}`]);

class App extends Component {
  constructor() {
    super();
    this.version = 0;
    this.feed = new Feed(() => this.changed());
    this.orders = new Orders(this.feed, (said) => this.say(said));
    this.ask = (question) => this.setState({ question });
    this.state = { question: null, said: null, help: false, at: here() };
  }

  componentDidMount() {
    this.feed.connect();
    follow((event) => this.moved(event));
    this.ticking = setInterval(() => document.hidden || this.setState({}), TICK_MS);
    listen({
      ...Object.fromEntries(KEYED.map(({ key, name }) => [key, () => go(name)])),
      "/": () => this.search(),
      Escape: () => document.activeElement?.blur(),
      "?": () => this.setState({ help: true }),
      w: () => go(this.state.at.name === "wall" ? "now" : "wall"),
      t: switchTheme,
    });
  }

  // A new page, or a request of the list, begins at its top; a page that changes its query stays
  // where it is. On the way back the browser knows where that was.
  moved({ type }) {
    const at = here();
    const turned = type !== "popstate" && placeOf(at) !== placeOf(this.state.at);
    this.setState({ at, question: null }, () => turned && scrollTo(0, 0));
  }

  // In the first field of the requests' search.
  search() {
    const { name, query } = this.state.at;
    if (name !== "requests" || query.has("id")) go("requests");
    this.setState({}, () => document.querySelector(".requests-search input")?.focus());
  }

  componentDidUpdate() {
    if (!this.received) return;
    const detail = { received: this.received };
    dispatchEvent(new CustomEvent("hearth-drawn", { detail })); // For whoever measures.
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
    const { question, said, help, at } = this.state;
    const page = pageOf(at.name);
    const wall = Boolean(page?.wall);
    document.title = titleOf(feed, page);
    document.body.classList.toggle("wall", wall);
    const stale = feed.state && !["live", "connecting"].includes(feed.link.status);
    const down = feed.state && !feed.state.house.backend.up;
    const classes = `page-${page?.name ?? "none"} ${stale ? "stale" : ""} ${down ? "down" : ""}`;
    return html`<${Header} feed=${feed} page=${page} orders=${this.orders}
        help=${() => this.setState({ help: true })} />
      <${Notices} feed=${feed} orders=${this.orders} ask=${wall ? null : this.ask} />
      <main id="main" class=${classes}>${this.body(page)}</main>
      <${Said} said=${said} close=${() => this.setState({ said: null })} />
      ${question
        ? html`<${Question} question=${question}
            close=${() => this.setState({ question: null })} />`
        : null}
      ${help
        ? html`<${Help} opening=${OPENING} close=${() => this.setState({ help: false })} />`
        : null}`;
  }

  body(page) {
    const { feed } = this;
    const { status, reason } = feed.link;
    if (status === "locked") return html`<${Lock} feed=${feed} />`;
    if (status === "refused") {
      return html`<${Centre} title="Hearth refused this page" text=${reason}>
        <button onClick=${() => feed.connect()}>Try again</button><//>`;
    }
    if (!feed.state && status === "waiting") {
      return html`<${Centre} title="Hearth does not answer"
        text="The page keeps trying to connect." />`;
    }
    if (!feed.state) return html`<${Centre} title="Connecting" text="One moment." />`;
    if (!page) {
      return html`<${Centre} title="There is no such page" text="The address may be mistyped.">
        <${Link} to="now">See what runs now<//><//>`;
    }
    learnModels(Object.keys(feed.state.models));
    const { orders, version } = this;
    const { query } = this.state.at;
    const ask = page.wall ? null : this.ask;
    const shared = { feed, state: feed.state, now: feed.now(), orders, ask, query, go, version };
    // Who loses or gets rights begins anew: it has other addresses to ask.
    return html`<${page.page} key=${`${page.name} ${feed.state.you.admin}`} ...${shared} />`;
  }
}

const placeOf = ({ name, query }) => `${name} ${query.get("id") ?? ""}`;

function Centre({ title, text, children }) {
  return html`<div class="centre">
    <h1>${title}</h1>
    <p class="muted pre">${text}</p>
    ${children}
  </div>`;
}

function Said({ said, close }) {
  const classes = `said ${said ? "shown" : ""} ${said?.bad ? "bad" : ""}`;
  return html`<div role="status" class=${classes}>
    ${said
      ? html`<span>${said.text}</span>
          <button class="icon" aria-label="Close" onClick=${close}>
            <${Icon} name="close" /></button>`
      : null}
  </div>`;
}

function titleOf(feed, page) {
  const { state, link } = feed;
  if (link.status === "locked") return "Hearth: key needed";
  if (link.status !== "live" || !state) return "Hearth: no connection";
  if (page && !["now", "wall"].includes(page.name)) return `${page.title} | Hearth`;
  const waiting = state.waiting.internal + state.waiting.external;
  const standing = standingOrders(state, feed.now()).filter(([name]) => name !== "pinned");
  const ordered = standing.map(([name]) => `${name}, `).join("");
  return `${ordered}${Object.keys(state.running).length} running, ${waiting} waiting | Hearth`;
}

const WORDS = {
  live: "live",
  connecting: "connecting",
  waiting: "reconnecting",
  locked: "sign-in needed",
  refused: "refused",
};

function Header({ feed, page, orders, help }) {
  const { state, link } = feed;
  return html`<header class="top">
    <a class="skip" href="#main">Skip to content</a>
    <${Link} to="now" class="brand" aria-label="Hearth">
      <img src=${`${BASE}/static/flame.svg`} alt="" width="24" height="24" /><span>Hearth</span><//>
    ${page?.wall || link.status === "locked" ? null : html`<${Pages} page=${page} />`}
    <span class="grow"></span>
    <${Connection} feed=${feed} />
    ${state && !page?.wall ? html`<${ModeSwitch} state=${state} orders=${orders} />` : null}
    ${state ? html`<span class="muted facts-line">${factsOf(state, feed.now())}</span>` : null}
    <${You} feed=${feed} wall=${page?.wall} />
    ${page?.wall
      ? html`<${Link} to="now" class="icon" aria-label="Leave the wall view" title="Leave (w)">
          <${Icon} name="close" /><//>`
      : html`<button class="icon desk" aria-label="Keyboard shortcuts" onClick=${help}
          title="Keyboard shortcuts (?)"><${Icon} name="keyboard-outline" /></button>`}
    <button class="icon" aria-label="Switch between dark and light" title="Dark or light (t)"
      onClick=${switchTheme}><${Icon} name="theme-light-dark" /></button>
  </header>`;
}

function factsOf({ house }, now) {
  return `${house.mode} hours · up ${whole(now - house.started)} · ${house.version}`;
}

// On a phone a bar at the bottom of the screen.
function Pages({ page }) {
  return html`<nav class="pages" aria-label="Pages">
    ${PAGES.map(({ name, title, icon }) => html`<${Link} key=${name} to=${name} title=${title}
      class=${`to-${name}`} aria-current=${name === page?.name ? "page" : undefined}>
      <${Icon} name=${icon} /><span>${title}</span><//>`)}
  </nav>`;
}

function Connection({ feed: { state, link } }) {
  const tones = { live: state?.house.status === "ok" ? "ok" : "bad", connecting: "" };
  const since = link.status === "waiting" && state ? `, last data ${clock(link.since / 1000)}` : "";
  return html`<span class="link" role="status">
    <span class=${`dot ${tones[link.status] ?? "warn"}`}></span>
    <span>${WORDS[link.status]}${since}</span>
  </span>`;
}

function You({ feed, wall }) {
  if (!feed.state) return null;
  const { caller, admin } = feed.state.you;
  const right = admin ? html`<span class="right">${" "}(admin)</span>` : null;
  return html`<span class="muted you" title="signed in as">${caller}${right}</span>
    ${feed.key && !wall
      ? html`<button class="icon" aria-label="Sign out" title="Sign out"
          onClick=${() => feed.useKey("")}><${Icon} name="logout" /></button>`
      : null}`;
}

function switchTheme() {
  const root = document.documentElement;
  const system = matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
  root.dataset.theme = (root.dataset.theme ?? system) === "dark" ? "light" : "dark";
  try {
    localStorage.setItem("hearth.theme", root.dataset.theme);
  } catch {
    // Storage is off: the choice holds until the page is closed.
  }
  dispatchEvent(new Event("hearth-theme"));
}

// A browser asks for the icon again when the address changes, and relative to that.
const flame = document.querySelector("link[rel=icon]");
flame.href = new URL(flame.href).href;
render(html`<${App} />`, document.getElementById("app"));
