// What has ended lately, and what was refused. All of it is on the page of requests.

import { html, Component } from "./vendor/htm-preact-3.1.1.module.js";
import { clock, count, duration, rate, tokensPerSecond, whole } from "./format.js";
import { Caller, Empty, Lane, Model, Panel } from "./parts.js";
import { PhaseLegend, Phases } from "./phases.js";
import { Link } from "./router.js";

const ROWS_SHOWN = 6;
const KINDS = [[false, "Finished"], [true, "Refused"]];
const TONES = { completed: "ok", failed: "bad", expired: "warn" };

export class Recent extends Component {
  state = { refused: false };

  render(props, { refused }) {
    const tools = html`${refused ? null : html`<${PhaseLegend} />`}
      <${Link} to="requests">All requests<//>
      <span class="segmented" role="group" aria-label="Finished or refused requests">
        ${KINDS.map(([value, text]) => html`<button key=${text}
          aria-pressed=${String(refused === value)}
          onClick=${() => this.setState({ refused: value })}>${text}</button>`)}</span>`;
    return html`<${Panel} title=${refused ? "Refused" : "Finished"} id="recent-title"
      className="ended" tools=${tools}>
      <div class="scroll" tabindex="0">
        ${refused ? html`<${Refusals} ...${props} />` : html`<${Endings} ...${props} />`}</div>
    <//>`;
  }
}

// Pairs of a number and a row, the latest first.
function latest(rows) {
  return Object.entries(rows ?? {}).sort((a, b) => Number(b[0]) - Number(a[0]));
}

function Refusals({ state, now }) {
  const items = latest(state.refused);
  if (!items.length) return html`<${Empty}>No request was refused since the start.<//>`;
  return html`<table class="recent">
    <caption class="hidden">Requests that were refused, latest first, with the reason</caption>
    <thead><tr>
      <th scope="col">When</th><th scope="col">Caller</th><th scope="col">Model</th>
      <th scope="col">Request</th><th scope="col">Reason</th>
      <th scope="col" class="number">Status</th>
    </tr></thead>
    <tbody>${items.map(([number, item]) => html`<${Refused} key=${number} item=${item}
      now=${now} />`)}</tbody></table>`;
}

function Refused({ item, now }) {
  return html`<tr>
    <td class="time muted" title=${`${whole(now - item.at)} ago`}>${clock(item.at)}</td>
    <td>${item.caller || html`<span class="muted">unknown</span>`}</td>
    <td>${item.model
      ? html`<${Model} name=${item.model} />`
      : html`<span class="muted" title="refused before its body was read">–</span>`}</td>
    <td><code>${item.path}</code></td>
    <td>${item.reason.replaceAll("_", " ")}</td>
    <td class="number">${item.status}</td>
  </tr>`;
}

function Endings({ state, now, show }) {
  const items = latest(state.recent).slice(0, ROWS_SHOWN);
  if (!items.length) {
    const whose = state.you.admin ? "No request has" : "None of your requests has";
    return html`<${Empty}>${whose} finished yet.<//>`;
  }
  const longest = Math.max(0.001, ...items.map(([, item]) => item.total_s));
  return html`<table class="recent">
    <caption class="hidden">Requests that have ended, latest first, with the time each phase took
    </caption>
    <thead><tr>
      <th scope="col">Ended</th><th scope="col">Caller</th><th scope="col">Model</th>
      <th scope="col">Outcome</th><th scope="col">Phases</th>
      <th scope="col" class="number">Total</th><th scope="col" class="number">Tokens</th>
      <th scope="col" class="number">Speed</th>
    </tr></thead>
    <tbody>${items.map(([number, item]) => html`<${Ended} key=${number} item=${item}
      longest=${longest} now=${now} show=${show} />`)}</tbody></table>`;
}

function Ended({ item, longest, now, show }) {
  const speed = rate(tokensPerSecond(item))?.replace(" tokens/s", "/s");
  return html`<tr>
    <td class="time muted" title=${`${whole(now - item.ended)} ago`}>${clock(item.ended)}</td>
    <td><${Lane} item=${item} /> <${Caller} item=${item} show=${show} />
      ${item.task_type ? html` <span class="muted">${item.task_type}</span>` : null}</td>
    <td><${Model} name=${item.model} /></td>
    <td class="outcome"><${Outcome} item=${item} /></td>
    <td class="phases"><${Phases} item=${item} longest=${longest} /></td>
    <td class="number">${duration(item.total_s)}</td>
    <td class="number"><${Tokens} item=${item} /></td>
    <td class="number" title="tokens of the answer per second">${speed ?? "–"}</td>
  </tr>`;
}

function Outcome({ item: { outcome, reason, interrupts, resumed } }) {
  return html`<span class=${`dot ${TONES[outcome] ?? ""}`}></span> ${outcome}
    ${reason && reason !== outcome ? html` <span class="muted">${reason}</span>` : null}
    ${interrupts
      ? html` <span class="badge warn">${interrupts}× ${resumed ?? "interrupted"}</span>`
      : null}`;
}

function Tokens({ item: { prompt_tokens: prompt, output_tokens: output } }) {
  if (prompt == null && output == null) return "–";
  return html`${count(prompt)} <span class="muted">→</span> ${count(output)}`;
}
