// Limits, and what has ended.

import { html } from "./vendor/htm-preact-3.1.1.module.js";
import { clock, count, duration, rate, runOf, tokensPerSecond, usd, whole } from "./format.js";
import { Caller, Empty, Lane, Meter, Model, Panel } from "./parts.js";

const ROWS_SHOWN = 6;

// Limits and money.

export function Limits({ state }) {
  const callers = Object.entries(state.callers);
  const { cloud } = state.house;
  return html`<${Panel} title="Limits and budgets" id="limits-title" className="limits-panel"><div class="box">
    ${callers.length ? html`<div class="scroll"><table class="limits"><caption class="hidden">Use of rate limits by caller</caption>
      <thead><tr><th scope="col">Caller</th><th scope="col">Last minute</th><th scope="col">Last hour</th></tr></thead>
      <tbody>${callers.map(([name, used]) => html`<tr key=${name}><th scope="row">${name}</th>
        <td><${Use} name=${`${name}, last minute`} used=${used.minute} /></td><td><${Use} name=${`${name}, last hour`} used=${used.hour} /></td></tr>`)}</tbody>
    </table></div>` : html`<${Empty}>No external request in the last hour.<//>`}
    ${cloud && (cloud.state !== "off" || cloud.spent_today_usd > 0 || cloud.internal_spent_today_usd > 0) ? html`<${Cloud} cloud=${cloud} />` : null}</div>
  <//>`;
}

function Use({ name, used: [used, limit] }) {
  return html`<span class="use"><${Meter} label=${name} value=${used} most=${limit} text=${`${used} of ${limit}`} />
    <span class="number">${count(used)}<span class="muted"> / ${count(limit)}</span></span></span>`;
}

function Cloud({ cloud }) {
  const spent = Number(cloud.spent_today_usd ?? 0);
  const limit = cloud.limit_today_usd == null ? null : Number(cloud.limit_today_usd);
  return html`<div class="cloud"><p><b>Claude</b> <span class="muted">${cloud.model}</span>
    ${cloud.state === "down" ? html`<span class="badge bad">down</span>` : null}
    <span class="grow"></span><span class="number">${usd(spent)}${limit == null ? "" : html`<span class="muted"> of ${usd(limit)} today</span>`}</span></p>
    ${limit == null ? null : html`<${Meter} label="Spent on Claude today" value=${spent} most=${limit} text=${usd(spent)} className="block" />`}
    ${Object.entries(cloud.callers ?? {}).map(([name, used]) => html`<p key=${name} class="use"><span class="caller">${name}</span>
      <span class="number">${usd(used.used_usd)}${used.limit_usd == null ? "" : html`<span class="muted"> of ${usd(used.limit_usd)}</span>`}</span></p>`)}
    <p class="muted small">${cloud.running ? `${cloud.running} running · ` : ""}${usd(cloud.reserved_usd)} reserved · internal ${usd(cloud.internal_spent_today_usd)}</p></div>`;
}

// What has ended.

export const PHASES = [
  ["queue", "waiting"],
  ["swap", "swap"],
  ["first", "reading"],
  ["write", "answering"],
  ["work", "reading and answering"],
];

export function Recent({ refused, choose, ...props }) {
  const legend = html`<span class="legend">${PHASES.map(([name, text]) => html`<span key=${name}><i class=${`phase ${name}`}></i>${text}</span>`)}</span>`;
  const tools = html`${refused ? null : legend}<span class="segmented" role="group" aria-label="Finished or refused requests">${[[false, "Finished"], [true, "Refused"]].map(
    ([value, text]) => html`<button key=${text} aria-pressed=${String(refused === value)} onClick=${() => choose(value)}>${text}</button>`)}</span>`;
  return html`<${Panel} title=${refused ? "Refused" : "Finished"} id="recent-title" className="ended" tools=${tools}>
    <div class="box scroll" tabindex="0">${refused ? html`<${Refusals} ...${props} />` : html`<${Endings} ...${props} />`}</div><//>`;
}

function Refusals({ state, now }) {
  const items = Object.entries(state.refused ?? {}).sort((a, b) => Number(b[0]) - Number(a[0]));
  if (!items.length) return html`<${Empty}>No request was refused since the start.<//>`;
  return html`<table class="recent"><caption class="hidden">Requests that were refused, latest first, with the reason</caption>
    <thead><tr><th scope="col">When</th><th scope="col">Caller</th><th scope="col">Model</th><th scope="col">Request</th><th scope="col">Reason</th><th scope="col" class="number">Status</th></tr></thead>
    <tbody>${items.map(([number, item]) => html`<tr key=${number}><td class="time muted" title=${whole(now - item.at) + " ago"}>${clock(item.at)}</td><td>${item.caller || html`<span class="muted">unknown</span>`}</td>
      <td>${item.model ? html`<${Model} name=${item.model} />` : html`<span class="muted" title="refused before its body was read">–</span>`}</td><td><code>${item.path}</code></td><td>${item.reason.replaceAll("_", " ")}</td><td class="number">${item.status}</td></tr>`)}</tbody></table>`;
}

function Endings({ state, now, all, toggle, show }) {
  const found = Object.entries(state.recent).sort((a, b) => Number(b[0]) - Number(a[0]));
  const items = all ? found : found.slice(0, ROWS_SHOWN);
  const longest = Math.max(0.001, ...items.map(([, item]) => item.total_s));
  if (!items.length) {
    return html`<${Empty}>${state.you.admin ? "No request has finished yet." : "None of your requests has finished yet."}<//>`;
  }
  return html`<table class="recent"><caption class="hidden">Requests that have ended, latest first, with the time each phase took</caption>
    <thead><tr><th scope="col">Ended</th><th scope="col">Caller</th><th scope="col">Model</th><th scope="col">Outcome</th>
      <th scope="col">Phases</th><th scope="col" class="number">Total</th><th scope="col" class="number">Tokens</th><th scope="col" class="number">Speed</th></tr></thead>
    <tbody>${items.map(([number, item]) => html`<${Ended} key=${number} item=${item} longest=${longest} now=${now} show=${show} />`)}</tbody></table>
    ${found.length > ROWS_SHOWN ? html`<button class="quiet small" aria-expanded=${String(Boolean(all))} onClick=${toggle}>${all ? "Fewer" : `All ${found.length}`}</button>` : null}`;
}

function Ended({ item, longest, now, show }) {
  const tone = { completed: "ok", failed: "bad", expired: "warn", cancelled: "" }[item.outcome] ?? "";
  return html`<tr>
    <td class="time muted" title=${whole(now - item.ended) + " ago"}>${clock(item.ended)}</td>
    <td><${Lane} item=${item} /> <${Caller} item=${item} show=${show} />${item.task_type ? html` <span class="muted">${item.task_type}</span>` : null}</td>
    <td><${Model} name=${item.model} /></td>
    <td class="outcome"><span class=${`dot ${tone}`}></span> ${item.outcome}${item.reason && item.reason !== item.outcome ? html` <span class="muted">${item.reason}</span>` : null}
      ${item.interrupts ? html` <span class="badge warn">${item.interrupts}× ${item.resumed ?? "interrupted"}</span>` : null}</td>
    <td class="phases"><${Phases} item=${item} longest=${longest} /></td>
    <td class="number">${duration(item.total_s)}</td>
    <td class="number">${item.prompt_tokens == null && item.output_tokens == null ? "–" : html`${count(item.prompt_tokens)} <span class="muted">→</span> ${count(item.output_tokens)}`}</td>
    <td class="number" title="tokens of the answer per second">${rate(tokensPerSecond(item))?.replace(" tokens/s", "/s") ?? "–"}</td>
  </tr>`;
}

export function phasesOf(item) {
  const swap = Math.min(item.swap_s ?? 0, item.queue_s);
  return { queue: item.queue_s - swap, swap, ...runOf(item) };
}

export function Phases({ item, longest }) {
  const phases = phasesOf(item);
  const text = PHASES.filter(([name]) => phases[name] >= 0.05).map(([name, word]) => `${word} ${duration(phases[name])}`).join(", ") || "less than 50 ms";
  return html`<span class="bar" role="img" aria-label=${text} title=${text}>${PHASES.map(([name]) => phases[name] > 0
    ? html`<i key=${name} class=${`phase ${name}`} style=${{ width: `${(phases[name] / longest) * 100}%` }}></i>` : null)}</span>`;
}
