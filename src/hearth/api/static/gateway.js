// The state of the gateway in lines, and the admin commands.

import { html, Component } from "./vendor/htm-preact-3.1.1.module.js";
import { count, day, usd, whole } from "./format.js";
import { Panel } from "./parts.js";
import { Link } from "./router.js";

const PHONE_PX = 640;

export function Gateway({ state, now, orders, ask }) {
  const { alerts, announced } = state.house;
  const due = Object.entries(announced).sort((a, b) => a[1] - b[1]);
  return html`<${Panel} title="Gateway" id="gateway-title">
    <ul class="facts">
      <${Configuration} config=${state.house.config} now=${now} />
      <${Store} storage=${state.house.storage} />
      ${(alerts?.targets ?? []).map((each) => html`<${Target} key=${each.name} target=${each} />`)}
      ${due.map(([task, at]) => html`<${Fact} key=${task}><b>${task}</b> is due at${" "}
        ${day(at, now)}, in ${whole(at - now)}<//>`)}
      <${Claude} cloud=${state.house.cloud} />
      <${Hours} house=${state.house} now=${now} />
      <${Mode} modes=${state.house.modes} now=${now} />
    </ul>
    ${state.you.admin && ask
      ? html`<${Buttons} state=${state} orders=${orders} ask=${ask} />`
      : null}
  <//>`;
}

function Fact({ tone, title, children }) {
  return html`<li><span class=${`dot ${tone ?? ""}`}></span>
    <span title=${title}>${children}</span></li>`;
}

function Configuration({ config, now }) {
  const { problems, restart_pending: pending } = config;
  const tone = problems.length ? "bad" : pending.length ? "warn" : "ok";
  return html`${problems.map((problem) => html`<${Fact} key=${problem} tone="bad">
      <code>${problem}</code><//>`)}
    <${Fact} tone=${tone}>Configuration ${config.generation}, ${config.source === "defaults"
      ? "built-in defaults"
      : html`<code>${config.source}</code>`}, since ${day(config.loaded_wall, now)}
      ${pending.length ? html`; <b>restart needed for ${pending.join(", ")}</b>` : null}<//>`;
}

function Store({ storage }) {
  if (!storage) return null;
  const { state, waiting_rows: rows } = storage;
  if (state === "ok") return html`<${Fact} tone="ok">The request log is being written.<//>`;
  return html`<${Fact} tone="bad">The request log is not written (${state}); ${count(rows)} rows are
    waiting.<//>`;
}

function Target({ target: { name, host, state, sent, failed, problem } }) {
  const tone = problem ? "bad" : failed ? "warn" : "ok";
  return html`<${Fact} tone=${tone}>Alerts to ${name} <span class="muted">${host}</span>: ${state},
    ${" "}${count(sent)} sent${failed ? `, ${count(failed)} failed` : ""}
    ${problem ? html`<br /><b>${problem}</b>` : null}<//>`;
}

// Nothing where it is off and has cost nothing today.
function Claude({ cloud }) {
  const spent = Number(cloud?.spent_today_usd ?? 0) + Number(cloud?.internal_spent_today_usd ?? 0);
  if (!cloud || (cloud.state === "off" && !spent)) return null;
  const limit = cloud.limit_today_usd == null ? "" : ` of ${usd(cloud.limit_today_usd)}`;
  const internal = cloud.internal_spent_today_usd;
  const parts = [
    `${usd(cloud.spent_today_usd)}${limit} today`,
    Number(internal) ? `internal requests ${usd(internal)}` : "",
    Number(cloud.reserved_usd) ? `${usd(cloud.reserved_usd)} reserved` : "",
    cloud.running ? `${count(cloud.running)} running` : "",
  ];
  return html`<${Fact} tone=${cloud.state === "down" ? "bad" : ""}>Claude${" "}
    <span class="muted">${cloud.model}</span>${cloud.state === "down" ? " is down" : ""}: ${parts
      .filter(Boolean)
      .join(" · ")}<//>`;
}

function Hours({ house: { mode, hours, policy, promotions }, now }) {
  const until = hours.changes == null ? "" : ` until ${day(hours.changes, now)}`;
  const what = mode === "active"
    ? `Active hours${until}: internal requests interrupt others`
    : `Quiet hours${until}: nothing is interrupted`;
  const promoted = promotions ? ` · ${count(promotions)} promoted by age` : "";
  return html`<${Fact} title=${`scheduling.active_hours: ${hours.windows.join(", ") || "none"}`}>
    ${what} · policy ${policy}${promoted}<//>`;
}

function Mode({ modes, now }) {
  if (!modes?.names?.length) return null;
  const until = modes.until == null ? "" : `, next change ${day(modes.until, now)}`;
  return html`<${Fact}>${modes.mode ? html`Mode <b>${modes.mode}</b>` : "No mode"}${until}
    ${" · "}<${Link} to="settings">Modes<//><//>`;
}

class Buttons extends Component {
  // On a phone they are folded up: there, what happens comes first.
  open = innerWidth > PHONE_PX;

  render({ state, orders, ask }) {
    const { orders: given, house } = state;
    const paused = given?.paused?.length;
    const targets = house.alerts?.targets?.length;
    const button = (text, question) =>
      html`<button onClick=${() => ask(question)}>${text}</button>`;
    return html`<details class="commands" open=${this.open}>
      <summary>Admin commands</summary>
      <div class="buttons left">
        ${button("Reload configuration", orders.reload())}
        ${button("Interrupt others", orders.preempt())}
        ${paused ? null : button("Pause others", orders.pause())}
        ${given?.draining ? null : button("Drain", orders.drain())}
        ${targets ? button("Test alerts", orders.testAlerts()) : null}
      </div>
    </details>`;
  }
}
