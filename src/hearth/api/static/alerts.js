// Active alerts with what to do, in the order of the status: the critical ones first. One that was
// acknowledged is out of the way on this device until it ends.

import { html, Component } from "./vendor/htm-preact-3.1.1.module.js";
import { BASE } from "./base.js";
import { alertAdvice, alertText, short } from "./format.js";
import { Empty, Panel } from "./parts.js";

const TONES = { critical: "bad", warning: "warn", information: "" };
const KEY = `hearth.acknowledged${BASE}`; // A proxy may serve several gateways.

export class Alerts extends Component {
  state = { seen: readSeen() };

  componentDidUpdate() {
    const active = activeAlerts(this.props.state).map(({ key }) => key);
    const seen = this.state.seen.filter((key) => active.includes(key)); // An ended one may return.
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
    const acknowledge = ask ? (key) => this.keep([...this.state.seen, key]) : null;
    const none = done ? "All active alerts are acknowledged." : "No active alerts.";
    return html`<${Panel} title="Alerts" id="alerts-title" className="alerts"
      note=${done ? `${done} acknowledged` : ""}>
      ${open.length
        ? html`<ul class="facts">${open.map((alert) => html`<${Alert} ...${alert}
            name=${alert.key} acknowledge=${acknowledge} />`)}</ul>`
        : html`<${Empty}>${none}<//>`}
    <//>`;
  }
}

function Alert({ name, type, severity, subject, acknowledge }) {
  const grade = severity ? `${severity[0].toUpperCase()}${severity.slice(1)}: ` : "";
  return html`<li><span class=${`dot ${TONES[severity] ?? "warn"}`}></span>
    <span class="grow"><b>${grade}${alertText(type)}${subject ? ` (${short(subject)})` : ""}</b>
      <br /><span class="muted">${alertAdvice(type)}</span></span>
    ${acknowledge
      ? html`<button class="small" aria-label=${`Acknowledge: ${alertText(type)}`}
          onClick=${() => acknowledge(name)}>OK</button>`
      : null}
  </li>`;
}

function activeAlerts(state) {
  const active = state.house.alerts?.active ?? [];
  return active.map((alert) => ({ ...alert, key: `${alert.type} ${alert.subject}` }));
}

function readSeen() {
  try {
    return JSON.parse(localStorage.getItem(KEY) ?? "[]");
  } catch {
    return [];
  }
}

function writeSeen(seen) {
  try {
    localStorage.setItem(KEY, JSON.stringify(seen));
  } catch {
    // Storage is off: it is acknowledged until the page is closed.
  }
}
