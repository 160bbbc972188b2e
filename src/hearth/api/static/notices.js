// What must not be overlooked: the connection, the model server, the configuration, active alerts, and the admin commands in force.

import { html, Component } from "./vendor/htm-preact-3.1.1.module.js";
import { alertAdvice, alertText, clock, count, day, gib, holders, short } from "./format.js";
import { Empty, Panel } from "./parts.js";

// One line of fixed height, so that nothing below moves: the most urgent notice, and how many more there are.
export class Notices extends Component {
  render({ feed, orders, ask }) {
    const all = feed.link.status === "locked" ? [] : [...ofConnection(feed), ...(feed.state ? ofGateway(feed.state) : [])];
    const [first, ...more] = all;
    return html`<div class="notices" role="alert">${first ? html`<p class=${`notice ${first[0]}`} title=${first[1]}>${first[1]}</p>` : null}
      ${more.length ? html`<details class="more-notices"><summary>${more.length} more</summary>${more.map(([tone, text]) => html`<p key=${text} class=${`notice ${tone}`}>${text}</p>`)}</details>` : null}</div>
      ${feed.state ? html`<${Standing} state=${feed.state} now=${feed.now()} orders=${orders} ask=${ask} />` : null}`;
  }
}

function ofConnection({ state, link }) {
  if (link.status !== "waiting" || !state) return [];
  return [["bad", `${link.reason}. Everything below is from ${clock(link.since / 1000)}. The page keeps trying to connect.`]];
}

function ofGateway({ house }) {
  const notices = [];
  if (house.reason && house.reason !== "draining") notices.push(["bad", `Requests cannot run: ${house.reason}.`]);
  if (house.draining) notices.push(["warn", "Hearth is stopping: new requests are refused, running ones may finish."]);
  const problems = house.config.problems.length;
  if (problems) notices.push(["bad", `The configuration file has ${problems === 1 ? "a mistake" : `${problems} mistakes`}; the previous configuration stays in force.`]);
  if (house.backend.emulator) {
    const until = house.backend.instead_of;
    const then = until ? ` Start Ollama at ${until}: Hearth then uses it.` : "";
    notices.push(["emulator", `THE EMULATOR IS ANSWERING: no model runs, every text is made up.${then}`]);
  }
  for (const warning of house.warnings) notices.push(["warn", `${warning[0].toUpperCase()}${warning.slice(1)}`]);
  return notices;
}

const TONES = { critical: "bad", warning: "warn", information: "" };

// Active alerts with what to do, in the order of the status: the critical ones first, and with one of them nothing is scrolled away. An acknowledged one is out of the way on this device until it ends.
export class Alerts extends Component {
  constructor() {
    super();
    this.state = { seen: readSeen() };
  }

  componentDidUpdate() {
    const active = activeAlerts(this.props.state).map(({ key }) => key);
    const seen = this.state.seen.filter((key) => active.includes(key)); // One that has ended may begin again.
    if (seen.length < this.state.seen.length) this.keep(seen);
  }

  keep(seen) {
    this.setState({ seen });
    writeSeen(seen);
  }

  render({ state, ask }) {
    const active = activeAlerts(state);
    const open = active.filter(({ key }) => !this.state.seen.includes(key));
    const done = active.length - open.length;
    return html`<${Panel} title="Alerts" id="alerts-title" className="alerts" note=${done ? `${done} acknowledged` : ""}><div class=${`box ${open.some(({ severity }) => severity === "critical") ? "critical" : ""}`}>
      ${open.length ? html`<ul class="facts">${open.map(({ key, type, severity, subject }) => html`<li key=${key}><span class=${`dot ${TONES[severity] ?? "warn"}`}></span>
        <span class="grow"><b>${severity ? `${severity[0].toUpperCase()}${severity.slice(1)}: ` : ""}${alertText(type)}${subject ? ` (${short(subject)})` : ""}</b><br /><span class="muted">${alertAdvice(type)}</span></span>
        ${ask ? html`<button class="small" aria-label=${`Acknowledge: ${alertText(type)}`} onClick=${() => this.keep([...this.state.seen, key])}>OK</button>` : null}</li>`)}</ul>`
        : html`<${Empty}>${done ? "All active alerts are acknowledged." : "No active alerts."}<//>`}</div><//>`;
  }
}

function activeAlerts(state) {
  return (state.house.alerts?.active ?? []).map((alert) => ({ ...alert, key: `${alert.type} ${alert.subject}` }));
}

function readSeen() {
  try {
    return JSON.parse(localStorage.getItem("hearth.acknowledged") ?? "[]");
  } catch {
    return [];
  }
}

function writeSeen(seen) {
  try {
    localStorage.setItem("hearth.acknowledged", JSON.stringify(seen));
  } catch {
    // Storage is off: it is acknowledged until the page is closed.
  }
}

// Admin commands in force, each with the button that ends it.
function Standing({ state, now, orders, ask }) {
  const standing = standingOrders(state, now);
  const ending = { pinned: () => orders.unpin(state.orders.pinned), yielded: () => orders.takeBack(state.leases) };
  if (!standing.length) return null;
  return html`<section class="standing" aria-label="Admin commands in force">${standing.map(([name, title, text, label]) => html`<div key=${name} class=${`order ${name}`}>
    <p><b>${title}</b> ${text}</p>
    ${state.you.admin && ask ? html`<button class="primary" onClick=${() => ask((ending[name] ?? (() => orders.resume()))())}>${label}</button>` : null}</div>`)}</section>`;
}

export function standingOrders({ orders: given, leases }, now) {
  const standing = [];
  const since = (name) => (given.since?.[name] ? ` Since ${day(given.since[name], now)}.` : "");
  if (leases?.held.length) standing.push(["yielded", ...yielded(leases, now), "Take it back"]);
  if (given?.draining) standing.push(["draining", "Draining.", `New requests are refused; waiting and running ones finish; jobs are kept.${since("draining")}`, "Resume"]);
  if (given?.paused?.length) standing.push(["paused", "External requests are paused.", `They are accepted and wait; internal requests go on.${since("paused")}`, "Resume"]);
  if (given?.pinned) standing.push(["pinned", `${short(given.pinned)} is pinned.`, `No external request can unload it.${since("pinned")}`, "Unpin"]);
  return standing;
}

function yielded({ state, held, to, mib, until, waiting, in_the_way: left }, now) {
  const what = mib == null ? "The GPU is" : `${gib(mib)} of the GPU are`;
  const end = until == null ? "until it ends" : `until ${day(until, now)}`;
  const stays = left.length ? ` Still in memory: ${left.map(short).join(", ")}.` : "";
  const waits = waiting ? ` ${count(waiting)} ${waiting === 1 ? "request waits" : "requests wait"}.` : "";
  return [`${what} ${state === "yielded" ? "yielded" : "being freed"}`, `${state === "yielded" ? "to" : "for"} ${holders(held, to)}, since ${day(Math.min(...held.map((lease) => lease.since)), now)}, ${end}.${waits}${stays}`];
}
