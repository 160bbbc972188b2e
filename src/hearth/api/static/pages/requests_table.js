// The table of the requests: what runs and waits on top, then what has ended. On a phone each row
// is a card.

import { html } from "../vendor/htm-preact-3.1.1.module.js";
import {
  count, day, duration, rate, tokensPerSecond, waitedFor, waitsFor, waitsOf,
} from "../format.js";
import { Phases } from "../phases.js";
import { CancelButton, Lane, Model } from "../parts.js";
import { Link } from "../router.js";
import { phaseOf } from "../running.js";
import { keyOf } from "./requests_rows.js";

export const TONES = { completed: "ok", failed: "bad", expired: "warn", cancelled: "" };

export function RequestTable({ live, rows, ...shared }) {
  if (!live.length && !rows.length) return null;
  const longest = Math.max(0.001, ...rows.map((row) => row.total_s));
  return html`<table class="requests-table">
    <caption class="hidden">Requests: those that run and wait, then those that have ended, the
      latest first</caption>
    <thead><tr>
      <th scope="col">Ended</th><th scope="col">Caller</th><th scope="col">Model</th>
      <th scope="col">Outcome</th><th scope="col">Waited for</th><th scope="col">Phases</th>
      <th scope="col" class="number">Total</th><th scope="col" class="number">Tokens</th>
      <th scope="col" class="number">Speed</th>
    </tr></thead>
    <tbody>
      ${live.map((item) => html`<${LiveRow} key=${`live-${item.sequence}`} item=${item}
        ...${shared} />`)}
      ${rows.map((row) => html`<${EndedRow} key=${keyOf(row)} row=${row} longest=${longest}
        ...${shared} />`)}
    </tbody>
  </table>`;
}

// Leads to the request's own page, and back to this search.
function Who({ item, filters }) {
  return html`<${Lane} item=${item} /> <${Link} to="requests" class="caller"
    values=${{ ...filters, id: item.request_id }}
    aria-label=${`Request ${item.request_id} of ${item.caller}`}>${item.caller}<//>
    ${item.user ? html` <span class="muted">${item.user}</span>` : null}
    ${item.task_type ? html` <span class="muted">${item.task_type}</span>` : null}`;
}

function LiveRow({ item, state, now, filters, orders, ask }) {
  const runs = item.dispatched != null;
  const before = Math.max(0, state.waiting.order.indexOf(item.sequence));
  return html`<tr class="live">
    <td class="time"><span class=${`dot ${runs ? "ok" : "warn"}`}></span>${" "}
      ${runs ? "runs" : "waits"}</td>
    <td><${Who} item=${item} filters=${filters} /></td>
    <td><${Model} name=${item.model} /></td>
    <td class="outcome">${runs ? phaseOf(item) : "waiting"}
      <${Interrupted} times=${item.interrupts} /></td>
    ${runs
      ? html`<td class="waited none">–</td>`
      : html`<td class="waited" data-label="Waits for">${waitsFor(item.why, before, now)}</td>`}
    <td class="phases"><${CancelButton} item=${item} state=${state} orders=${orders}
      ask=${ask} /></td>
    <td class="number" data-label="So far">${duration(now - item.arrived)}</td>
    <td class="number"></td><td class="number"></td>
  </tr>`;
}

function EndedRow({ row, longest, now, filters }) {
  return html`<tr>
    <td class="time muted">${day(row.ended_wall_s, now, true)}</td>
    <td><${Who} item=${row} filters=${filters} /></td>
    <td><${Model} name=${row.model} /></td>
    <td class="outcome"><span class=${`dot ${TONES[row.outcome] ?? ""}`}></span> ${row.outcome}
      ${row.reason && row.reason !== row.outcome
        ? html` <span class="muted">${row.reason.replaceAll("_", " ")}</span>`
        : null}
      <${Interrupted} times=${row.interrupt_count} how=${row.resumed} /></td>
    <${Waited} row=${row} />
    <td class="phases"><${Phases} item=${row} longest=${longest} /></td>
    <td class="number" data-label="Total">${duration(row.total_s)}</td>
    <td class="number" data-label="Tokens"><${Tokens} row=${row} /></td>
    <td class="number" data-label="Speed" title="tokens of the answer per second">
      ${rate(tokensPerSecond(row))?.replace(" tokens/s", "/s") ?? "–"}</td>
  </tr>`;
}

function Waited({ row }) {
  const waits = waitsOf(row);
  const text = waits.map(([kind, seconds]) => `${waitedFor(kind)}: ${duration(seconds)}`);
  if (!waits.length) return html`<td class="waited none">–</td>`;
  return html`<td class="waited" data-label="Waited for" title=${text.join("\n")}>
    ${waits.map(([kind, seconds]) => html`<span key=${kind} class="wait">
      ${kind.replaceAll("_", " ")} ${duration(seconds)}</span>`)}</td>`;
}

function Interrupted({ times, how }) {
  return times ? html` <span class="badge warn">${times}× ${how ?? "interrupted"}</span>` : null;
}

function Tokens({ row }) {
  if (row.prompt_tokens == null && row.output_tokens == null) return "–";
  return html`${count(row.prompt_tokens)} <span class="muted">→</span>${" "}
    ${count(row.output_tokens)}`;
}
