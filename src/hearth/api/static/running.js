// What runs, and the swap that is under way.

import { html } from "./vendor/htm-preact-3.1.1.module.js";
import { shadeClass } from "./colours.js";
import { duration, ofExpected, short } from "./format.js";
import { Caller, CancelButton, Empty, Lane, Model, Panel } from "./parts.js";

const WHY_SWAPPED = {
  overdue: "a request has waited too long",
  home: "back to the home model",
  reload: "loaded again",
  turn: "turn of external requests",
  lease: "for another program",
};

export function Running({ state, now, orders, ask, show }) {
  const items = Object.values(state.running);
  items.sort((a, b) => a.dispatched - b.dispatched || a.sequence - b.sequence);
  const { swap } = state.gpu;
  return html`<${Panel} title="Running now" id="running-title" className="now"
    note=${items.length ? `${items.length} on the GPU` : ""}>
    <div class="box">
      ${swap ? html`<${SwapRow} swap=${swap} now=${now} />` : null}
      ${items.length || swap ? null : html`<${Empty}>Nothing is running. ${readiness(state)}<//>`}
      <ul class="runs">${items.map((item) => html`<${Run} key=${item.sequence} item=${item}
        now=${now} state=${state} orders=${orders} ask=${ask} show=${show} />`)}</ul>
    </div>
  <//>`;
}

function readiness({ house, gpu }) {
  if (!house.backend.up) return "The model server does not answer.";
  if (gpu.loaded_model) return `${short(gpu.loaded_model)} is loaded and ready.`;
  return "No model is loaded.";
}

function whySwapped({ why, to }) {
  if (why === "waiting") return `a request waits for ${to ? "it" : "another model"}`;
  return WHY_SWAPPED[why] ?? why;
}

function swapped({ from, to, cutting, unloading }) {
  if (to) return `${from.length ? `${from.map(short).join(", ")} → ` : ""}${short(to)}`;
  return cutting ? short(cutting) : unloading.map(short).join(", ");
}

function SwapRow({ swap, now }) {
  const passed = now - swap.since;
  const kind = swap.to ? "swap" : swap.cutting ? "load cut" : "unload";
  return html`<div class="run swapping">
    <div class="run-head"><span class="badge swap">${kind}</span><b>${swapped(swap)}</b>
      <span class="grow muted">${whySwapped(swap)}</span>
      <span class="number" title=${expectedTitle(swap.cost_s)}>
        ${ofExpected(passed, swap.cost_s)}</span></div>
    <${Progress} part=${swap.cost_s ? passed / swap.cost_s : 0} className="swap"
      label=${`Swap, ${duration(passed)}`} />
  </div>`;
}

function Progress({ part, className, label }) {
  const width = `${Math.min(1, Math.max(0, part)) * 100}%`;
  return html`<span class=${`progress ${className} ${part > 1 ? "late" : ""}`} role="img"
    aria-label=${label}><i style=${{ width }}></i></span>`;
}

function Run({ item, now, state, orders, ask, show }) {
  const passed = now - item.dispatched;
  const expected = item.expected_end - item.dispatched;
  return html`<li class="run">
    <div class="run-head">
      <${Lane} item=${item} /><${Caller} item=${item} show=${show} />
      <${Model} name=${item.model} />
      ${item.task_type ? html`<span class="muted">${item.task_type}</span>` : null}
      ${item.interrupts
        ? html`<span class="badge warn" title="how often an internal request interrupted it">
            ${item.interrupts}× interrupted</span>`
        : null}
      <span class="grow muted">${phaseOf(item)}</span>
      <span class="number" title=${expectedTitle(expected)}>${ofExpected(passed, expected)}</span>
      <${CancelButton} item=${item} state=${state} orders=${orders} ask=${ask} />
    </div>
    <${Progress} part=${expected > 0 ? passed / expected : 0}
      className=${shadeClass(item.model)} label=${ofExpected(passed, expected)} />
  </li>`;
}

// Of an answer that comes as a whole, nothing is known before its end.
export function phaseOf(item) {
  if (item.stopping) return "stopping";
  if (item.kind === "embed") return "embedding";
  if (item.first_byte) return "answering";
  return item.streaming ? "reading the prompt" : "reading or answering";
}

function expectedTitle(expected) {
  return expected > 0 ? `so far; ${duration(expected)} were expected when it started` : "so far";
}
