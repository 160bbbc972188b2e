// One screen that is read from across the room: large type, nothing to press, nothing cut. Every
// size is a multiple of `--u`, a pixel of a screen of 1920 by 1080.

import { html } from "../vendor/htm-preact-3.1.1.module.js";
import { shadeClass } from "../colours.js";
import { alertText, clock, count, gib, holders } from "../format.js";
import { ofExpected, short, startsIn, whole } from "../format.js";
import { Model } from "../parts.js";
import { Timeline } from "../timeline.js";

const RUNS_SHOWN = 4;
const LINES_SHOWN = 3;
const LOADED_SHOWN = 5;

export function Wall({ feed, state, now, version }) {
  const trouble = troubleOf(feed, state);
  if (trouble) return html`<${Trouble} ...${trouble} />`;
  return html`<h1 class="hidden">Wall</h1>
    <div class="wall-grid">
      <dl class="wall-numbers"><${Numbers} state=${state} now=${now} /></dl>
      <${Running} state=${state} now=${now} />
      <${Waiting} state=${state} now=${now} />
      <${Loaded} state=${state} />
      <${Timeline} state=${state} now=${now} version=${version} scale=${scale()} wall />
    </div>`;
}

function scale() {
  return Math.min(innerWidth / 1920, innerHeight / 1080);
}

function troubleOf({ link }, { house, leases }) {
  if (!["live", "connecting"].includes(link.status)) {
    const text = `Last data from ${clock((link.since ?? Date.now()) / 1000)}.`;
    return { title: "Hearth does not answer", text };
  }
  if (house.backend.up || leases?.held.length) return null;
  return { title: "The model server is down", text: house.reason || "It does not answer." };
}

function Trouble({ title, text }) {
  return html`<div class="wall-trouble" role="alert"><h1>${title}</h1><p>${text}</p></div>`;
}

function Numbers({ state, now }) {
  const { gpu, waiting } = state;
  const total = waiting.internal + waiting.external;
  const rows = waiting.order.map((sequence) => waiting.rows[sequence]);
  const next = rows.find((row) => row?.start != null)?.start;
  const alerts = state.house.alerts?.active ?? [];
  const load = `${Math.round(gpu.utilisation_pct ?? 0)} %`;
  const numbers = [
    ["Running", count(Object.keys(state.running).length), busyWith(state, now)],
    ["Waiting", count(total), total ? `next ${startsIn(next, now)}` : "nobody"],
    ...(gpu.readings === "ok" ? [["GPU", load, heat(gpu)]] : []),
    ["Alerts", count(alerts.length), alerts.length ? alertText(alerts[0].type) : "all is well"],
  ];
  const alarm = alerts.length ? `alarm ${alerts[0].severity}` : "";
  return numbers.map(([title, value, text]) => html`<div key=${title}
    class=${title === "Alerts" ? alarm : ""}>
    <dt>${title}</dt><dd><b>${value}</b></dd><dd class="muted">${text}</dd></div>`);
}

function busyWith({ gpu, leases }, now) {
  if (leases?.held.length) return `the GPU is with ${holders(leases.held, leases.to)}`;
  if (gpu.swap?.to) return `loading ${short(gpu.swap.to)}, ${whole(now - gpu.swap.since)}`;
  return gpu.loaded_model ? `${short(gpu.loaded_model)} is loaded` : "no model is loaded";
}

function heat({ temperature_c: heat_c, power_w: power }) {
  const parts = [
    heat_c == null ? "" : `${Math.round(heat_c)} °C`,
    power == null ? "" : `${Math.round(power)} W`,
  ];
  return parts.filter(Boolean).join(" · ");
}

function Running({ state, now }) {
  const items = Object.values(state.running).sort((a, b) => a.dispatched - b.dispatched);
  return html`<section class="wall-box"><h2>Running</h2>
    ${items.length ? null : html`<p class="muted">Nothing is running.</p>`}
    <ul>${items.slice(0, RUNS_SHOWN).map((item) => html`<${Run} key=${item.sequence}
      item=${item} now=${now} />`)}</ul>
    <${More} number=${items.length - RUNS_SHOWN} />
  </section>`;
}

function Run({ item, now }) {
  const passed = now - item.dispatched;
  const expected = item.expected_end - item.dispatched;
  const part = expected > 0 ? Math.min(1, passed / expected) : 0;
  return html`<li><p><b>${item.caller}</b> <${Model} name=${item.model} />
      <span class="grow"></span><span class="number">${ofExpected(passed, expected)}</span></p>
    <span class=${`progress ${shadeClass(item.model)}`}>
      <i style=${{ width: `${part * 100}%` }}></i></span></li>`;
}

// One line for each model; who is next comes first.
function Waiting({ state: { waiting }, now }) {
  const rows = waiting.order.map((sequence) => waiting.rows[sequence]).filter(Boolean);
  const lines = new Map();
  for (const row of rows) {
    const line = lines.get(row.model) ?? { row, number: 0 };
    lines.set(row.model, { ...line, number: line.number + 1 });
  }
  const shown = [...lines].slice(0, LINES_SHOWN);
  return html`<section class="wall-box"><h2>Waiting</h2>
    ${rows.length ? null : html`<p class="muted">No requests are waiting.</p>`}
    <ul>${shown.map(([model, line]) => html`<li key=${model}><p><${Model} name=${model} />
        <span class="grow"></span>
        <span class="number">${count(waiting.models[model ?? "*"] ?? line.number)}</span></p>
      <p class="muted">${line.row.caller}, starts ${startsIn(line.row.start, now)}</p></li>`)}</ul>
    <${More} number=${lines.size - LINES_SHOWN} />
  </section>`;
}

function More({ number }) {
  return number > 0 ? html`<p class="muted">and ${count(number)} more</p>` : null;
}

function Loaded({ state: { residents, gpu } }) {
  const loaded = Object.entries(residents);
  return html`<section class="wall-box"><h2>In memory</h2>
    ${loaded.length ? null : html`<p class="muted">No model is loaded.</p>`}
    <ul>${loaded.slice(0, LOADED_SHOWN).map(([name, each]) => html`<li key=${name}><p>
      <${Model} name=${name} />
      ${gpu.home_model === name ? html`<span class="badge">home</span>` : null}
      <span class="grow"></span>
      <span class="number">${each.reserved_mib == null ? "" : gib(each.reserved_mib)}</span>
    </p></li>`)}</ul>
    <${More} number=${loaded.length - LOADED_SHOWN} />
  </section>`;
}
