// The owner's modes: which one is in force, and switching it.

import { html } from "./vendor/htm-preact-3.1.1.module.js";
import { day } from "./format.js";
import { Panel } from "./parts.js";

const OFF = "";

// In the header of every page; nothing where the configuration has no modes.
export function ModeSwitch({ state, orders }) {
  const { names = [], mode = OFF } = state.house.modes ?? {};
  if (!names.length) return null;
  if (!state.you.may_set_mode) {
    return html`<span class="muted mode-switch">${mode || "no mode"}</span>`;
  }
  const chosen = (event) => orders.setMode(event.target.value || null);
  return html`<label class="mode-switch"><span class="hidden">Mode</span>
    <select value=${mode} onChange=${chosen} title="Mode">
      <option value=${OFF} selected=${mode === OFF}>no mode</option>
      ${names.map((name) => html`<option key=${name} value=${name} selected=${name === mode}>
        ${name}</option>`)}
    </select></label>`;
}

// `settings`: of each mode, as they are written; only admins have them.
export function Modes({ state, now, orders, ask, settings }) {
  const { names = [], mode = OFF, since, by, until } = state.house.modes ?? {};
  const note = since == null ? "" : `${mode || "none"} since ${day(since, now)}, by ${by}`;
  const next = until == null ? "" : `; the next time of a mode is ${day(until, now)}`;
  const put = state.you.may_set_mode && ask ? (name) => ask(orders.mode(name)) : null;
  return html`<${Panel} title="Modes" id="modes-title" className="modes" note=${`${note}${next}`}>
    ${names.length
      ? html`<ul class="mode-list">
          ${names.map((name) => html`<${Mode} key=${name} name=${name} inForce=${name === mode}
            written=${settings?.[name]} put=${put} />`)}
        </ul>`
      : html`<p class="empty">There are no modes. A mode is a set of settings under a name, such as
          night or gaming, that is put in force by the clock or by hand: write some
          under <code>modes:</code> in the configuration.</p>`}
    ${put && mode
      ? html`<div class="buttons left">
          <button onClick=${() => put(null)}>End the mode</button></div>`
      : null}
  <//>`;
}

function Mode({ name, inForce, written, put }) {
  const { when, ...sets } = written ?? {};
  const times = when == null ? "" : [when].flat().join("; ");
  const changes = Object.entries(sets).flatMap(([section, each]) => linesOf(section, each));
  return html`<li class=${`mode ${inForce ? "in-force" : ""}`}>
    <header><h3>${name}</h3>
      ${inForce ? html`<span class="badge">in force</span>` : null}
      ${times ? html`<span class="muted small">${times}</span>` : null}
      ${put && !inForce
        ? html`<button class="small" aria-label=${`Switch to ${name}`}
            onClick=${() => put(name)}>Switch</button>`
        : null}</header>
    ${changes.length
      ? html`<ul class="mode-sets">${changes.map((line) => html`<li key=${line}>
          <code>${line}</code></li>`)}</ul>`
      : null}
  </li>`;
}

// `queue.paused_callers: ["n8n"]`, a line for each value.
function linesOf(path, value) {
  if (value === null || typeof value !== "object" || Array.isArray(value)) {
    return [`${path}: ${JSON.stringify(value)}`];
  }
  return Object.entries(value).flatMap(([name, each]) => linesOf(`${path}.${name}`, each));
}
