// One request: what it waited for, how long each phase took, and how it ended.

import { html } from "./vendor/htm-preact-3.1.1.module.js";
import { clock, count, duration, rate, short, startsIn, startsWithin, tokensPerSecond, usd, waitsFor } from "./format.js";
import { Dialog } from "./help.js";
import { phasesOf } from "./panels.js";
import { phaseOf } from "./running.js";

const HOW = { continued: "continued where it stopped", replayed: "replayed from the start and compared" };

// The row of this request in the state as it is now: it moves from waiting to running to ended while the dialog is open.
export function found(state, sequence) {
  const key = String(sequence);
  return state.running[key] ?? state.waiting.rows[key] ?? Object.values(state.recent).find((item) => item.sequence === sequence) ?? null;
}

export function Detail({ state, now, shown, close }) {
  const item = found(state, shown.sequence) ?? shown;
  return html`<${Dialog} title=${`Request ${item.request_id}`} close=${close} className="detail">
    <dl class="pairs">${rowsOf(item, state, now).filter(([, value]) => value != null && value !== "").map(([name, value]) => html`<div key=${name}><dt>${name}</dt><dd>${value}</dd></div>`)}</dl>
  <//>`;
}

const times = (number) => (number === 1 ? "once" : `${number} times`);

function rowsOf(item, state, now) {
  const shared = [["Caller", item.caller], ["User", item.user], ["Model", short(item.model)], ["Alias", item.alias], ["Lane", item.band ? `${item.lane}, ${item.band}` : item.lane], ["Task type", item.task_type],
    ["Background", item.background], ["Number", String(item.sequence)]];
  if (item.outcome) return [...shared, ...endedRows(item)];
  const interrupted = item.interrupts ? times(item.interrupts) : null;
  const prompt = item.prompt_tokens ? `about ${count(item.prompt_tokens)} tokens` : null;
  if (item.dispatched) {
    return [...shared, ["State", phaseOf(item)], ["Waited", duration(item.dispatched - item.arrived)],
      ["Running for", duration(now - item.dispatched)], ["Expected to end", startsIn(item.expected_end, now)],
      ["Time to first byte", item.first_byte ? duration(item.first_byte - item.dispatched) : null], ["Attempt", String(item.attempt)], ["Interrupted", interrupted], ["Prompt", prompt], ["Preview", item.prompt_preview]];
  }
  const before = state.waiting.order.indexOf(item.sequence);
  return [...shared, ["State", "waiting"], ["Waits for", item.why ? waitsFor(item.why, Math.max(0, before), now) : null], ["Waited so far", duration(now - item.arrived)],
    ["Expected to start", startsIn(item.start, now)], ["90 % start", item.bound == null ? null : startsWithin(item.bound, now)], ["Interrupted", interrupted], ["Prompt", prompt], ["Preview", item.prompt_preview]];
}

function endedRows(item) {
  const phases = phasesOf(item);
  return [["Outcome", item.reason && item.reason !== item.outcome ? `${item.outcome}: ${item.reason}` : item.outcome], ["Ended", clock(item.ended)],
    ["Waited in the queue", duration(phases.queue)], ["Model swap", duration(phases.swap)], ["Reading the prompt", phases.work ? null : duration(phases.first)],
    ["Writing the answer", phases.work ? null : duration(phases.write)], ["Reading and answering", phases.work ? duration(phases.work) : null], ["Total", duration(item.total_s)],
    ["Tokens", item.output_tokens == null ? null : `${count(item.prompt_tokens)} prompt, ${count(item.output_tokens)} answer`], ["Speed", rate(tokensPerSecond(item))],
    ["Interrupted", item.interrupts ? `${times(item.interrupts)}${item.resumed ? `, ${HOW[item.resumed] ?? item.resumed}` : ""}` : null],
    ["Cost", item.cost_usd ? usd(item.cost_usd) : null]];
}
