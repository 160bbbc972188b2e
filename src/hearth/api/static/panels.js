// The parts of the page. Each takes the state and the present time and returns elements; text is always a text node.

import { html } from "./vendor/htm-preact-3.1.1.module.js";
import { shadeClass } from "./colours.js";
import { clock, count, day, duration, percent, short, startsIn, usd, waitsFor, whole } from "./format.js";
import { CancelButton, Empty, Lane, Meter, Model, Panel } from "./parts.js";

const ROWS_SHOWN = 12;

// Tiles: the numbers that an eye looks for first.

function Tile({ label, value, unit, detail, tone, children }) {
  return html`<div class=${`tile ${tone ?? ""}`}>
    <dt>${label}</dt>
    <dd><b>${value}</b>${unit ? html` <small>${unit}</small>` : null}</dd>
    ${children}
    <dd class="detail">${detail}</dd>
  </div>`;
}

export function Tiles({ state, now }) {
  const { gpu, waiting, house } = state;
  const running = Object.values(state.running);
  const stats = house.stats;
  const failed = (stats.internal_failed ?? 0) + (stats.external_failed ?? 0);
  const interrupted = (stats.internal_interrupted ?? 0) + (stats.external_interrupted ?? 0);
  const total = waiting.internal + waiting.external;
  const first = waiting.order.map((sequence) => waiting.rows[sequence]?.start).find((start) => start != null);
  return html`<dl class="tiles">
    <${Tile} label="Running" value=${running.length} detail=${runningDetail(state, now)} />
    <${Tile} label="Waiting" value=${count(total)} detail=${total
      ? `${waiting.internal ? `${count(waiting.internal)} of the house · ` : ""}next ${startsIn(first, now)}`
      : "nobody"} />
    <${Tile} label="Swap overhead, 1 h" value=${gpu.swap_overhead_pct_1h.toFixed(1)} unit="%"
      tone=${gpu.swap_overhead_pct_1h > gpu.limits.swap_overhead_pct ? "bad" : ""}
      detail=${`warns above ${gpu.limits.swap_overhead_pct} %`}>
      <${Meter} beyond label="Swap overhead against its warning" value=${gpu.swap_overhead_pct_1h} most=${gpu.limits.swap_overhead_pct}
        text=${percent(gpu.swap_overhead_pct_1h)} /></${Tile}>
    <${Tile} label="Swaps, 1 h" value=${gpu.swaps_this_hour}
      tone=${gpu.swaps_this_hour > gpu.limits.swaps_per_hour ? "bad" : ""} detail=${swapDetail(gpu)}>
      <${Meter} beyond label="Swaps against their warning" value=${gpu.swaps_this_hour} most=${gpu.limits.swaps_per_hour}
        text=${String(gpu.swaps_this_hour)} /></${Tile}>
    ${gpuTile(gpu)}
    <${Tile} label="Done, 24 h" value=${count((stats.internal_completed ?? 0) + (stats.external_completed ?? 0))}
      tone=${failed ? "warn" : ""} detail=${`${count(failed)} failed · ${count(interrupted)} interrupted · ${count(stats.rejected ?? 0)} refused`} />
  </dl>`;
}

function runningDetail(state, now) {
  const { swap } = state.gpu;
  if (swap?.to) return `${short(swap.to)} loads, ${whole(now - swap.since)}`;
  if (swap) return "making room";
  const names = [...new Set(Object.values(state.running).map((item) => short(item.model)))];
  if (names.length) return `on ${names.join(", ")}`;
  return state.gpu.loaded_model ? `${short(state.gpu.loaded_model)} is ready` : "the GPU is empty";
}

function swapDetail(gpu) {
  const failed = gpu.swap_failures_1h ? `${gpu.swap_failures_1h} failed · ` : "";
  return gpu.avg_swap_ms == null ? `${failed}warns above ${gpu.limits.swaps_per_hour}` : `${failed}warns above ${gpu.limits.swaps_per_hour} · last ${duration(gpu.last_swap_ms / 1000)}`;
}

function gpuTile(gpu) {
  if (gpu.readings !== "ok") {
    const detail = { off: "its numbers are not read", unknown: "no card says anything", lost: "it has stopped answering" }[gpu.readings];
    return html`<${Tile} label="GPU" value="–" tone=${gpu.readings === "lost" ? "bad" : ""} detail=${detail} />`;
  }
  const power = gpu.power_w == null ? "" : ` · ${Math.round(gpu.power_w)} W`;
  const hot = gpu.temperature_c != null && gpu.temperature_c >= gpu.limits.temperature_c;
  const heat = gpu.temperature_c == null ? "" : `${Math.round(gpu.temperature_c)} °C`;
  return html`<${Tile} label="GPU" value=${gpu.utilisation_pct == null ? "–" : Math.round(gpu.utilisation_pct)} unit="%" tone=${hot ? "bad" : ""}
    detail=${`${heat}${power}${gpu.throttled ? ` · slowed: ${gpu.throttle_reasons.join(", ")}` : ""}` || gpu.device} />`;
}

// What runs.

export function Running({ state, now, orders, ask }) {
  const items = Object.values(state.running).sort((a, b) => a.dispatched - b.dispatched || a.sequence - b.sequence);
  const { swap } = state.gpu;
  return html`<${Panel} title="Running now" id="running-title" className="now" note=${items.length ? `${items.length} on the GPU` : ""}>
    ${swap ? html`<${SwapRow} swap=${swap} now=${now} />` : null}
    ${items.length || swap ? null : html`<${Empty}>Nothing runs. ${state.gpu.loaded_model
      ? `${short(state.gpu.loaded_model)} is in memory and ready.` : "No model is in memory."}<//>`}
    <ul class="runs">${items.map((item) => html`<${Run} key=${item.sequence} item=${item} now=${now} state=${state} orders=${orders} ask=${ask} />`)}</ul>
  <//>`;
}

function SwapRow({ swap, now }) {
  const passed = now - swap.since;
  const names = { waiting: "somebody waits for it", overdue: "somebody has waited long enough", home: "home again", reload: "to load it anew" };
  const what = swap.to ? `${swap.from.length ? `${swap.from.map(short).join(", ")} → ` : ""}${short(swap.to)}` : swap.unloading.map(short).join(", ");
  return html`<div class="run swapping">
    <div class="run-head"><span class="badge swap">${swap.to ? "swap" : "unload"}</span><b>${what}</b>
      <span class="grow muted">${names[swap.why] ?? swap.why}</span><span class="number">${duration(passed)}${swap.cost_s ? ` of ~${duration(swap.cost_s)}` : ""}</span></div>
    <${Progress} part=${swap.cost_s ? passed / swap.cost_s : 0} className="swap" label=${`Swap, ${duration(passed)}`} />
  </div>`;
}

function Progress({ part, className, label }) {
  const width = `${Math.min(1, Math.max(0, part)) * 100}%`;
  return html`<span class=${`progress ${className} ${part > 1 ? "late" : ""}`} role="img" aria-label=${label}><i style=${{ width }}></i></span>`;
}

function Run({ item, now, state, orders, ask }) {
  const passed = now - item.dispatched;
  const expected = item.expected_end - item.dispatched;
  const phase = item.stopping ? "stops" : item.first_byte ? (item.kind === "embed" ? "embeds" : "writes") : "reads the prompt";
  return html`<li class="run">
    <div class="run-head">
      <${Lane} item=${item} /><b class="caller">${item.caller}</b><${Model} name=${item.model} />
      ${item.task_type ? html`<span class="muted">${item.task_type}</span>` : null}
      ${item.interrupts ? html`<span class="badge warn" title="so often it had to make room">${item.interrupts}× interrupted</span>` : null}
      <span class="grow muted">${phase}</span>
      <span class="number" title="so far, and what was expected at its start">${duration(passed)} of ~${duration(expected)}</span>
      <${CancelButton} item=${item} state=${state} orders=${orders} ask=${ask} />
    </div>
    <${Progress} part=${expected > 0 ? passed / expected : 0} className=${shadeClass(item.model)} label=${`${duration(passed)} of about ${duration(expected)}`} />
  </li>`;
}

// Who waits.

export function Waiting({ state, now, orders, ask }) {
  const { waiting } = state;
  const total = waiting.internal + waiting.external;
  const rows = waiting.order.map((sequence) => waiting.rows[sequence]).filter(Boolean);
  const models = Object.entries(waiting.models).sort((a, b) => b[1] - a[1]);
  return html`<${Panel} title="Waiting" id="waiting-title" className="line" note=${total ? `${count(total)}, in the order in which they should start` : ""}>
    ${total > 1 ? html`<p class="chips">${models.slice(0, 8).map(([name, number]) => html`<span class="chip" key=${name}>
      <${Model} name=${name === "*" ? null : name} /> ${count(number)}</span>`)}</p>` : null}
    ${rows.length ? html`<div class="scroll"><table class="queue">
      <caption class="hidden">Waiting requests in the order in which they are expected to start</caption>
      <thead><tr><th scope="col" class="number">#</th><th scope="col">Caller</th><th scope="col">Model</th><th scope="col">Waits for</th>
        <th scope="col" class="number">Waited</th><th scope="col" class="number">Starts</th><th><span class="hidden">Cancel</span></th></tr></thead>
      <tbody>${rows.map((item, index) => html`<${Row} key=${item.sequence} item=${item} index=${index} now=${now} state=${state} orders=${orders} ask=${ask} />`)}</tbody>
    </table></div>` : html`<${Empty}>Nobody waits.<//>`}
    ${total > rows.length && rows.length ? html`<p class="more">and ${count(total - rows.length)} more</p>` : null}
  <//>`;
}

function Row({ item, index, now, state, orders, ask }) {
  return html`<tr>
    <td class="number muted">${index + 1}</td>
    <td><${Lane} item=${item} /> <b class="caller">${item.caller}</b>${item.task_type ? html` <span class="muted">${item.task_type}</span>` : null}
      ${item.interrupts ? html` <span class="badge warn">${item.interrupts}×</span>` : null}</td>
    <td><${Model} name=${item.model} /></td>
    <td class="why">${waitsFor(item.why, index, now)}</td>
    <td class="number">${whole(now - item.arrived)}</td>
    <td class="number" title=${item.rough ? "a guess: little is known yet of a model before it" : null}>${startsIn(item.start, now)}${item.rough && item.start != null ? " ?" : null}</td>
    <td class="end"><${CancelButton} item=${item} state=${state} orders=${orders} ask=${ask} /></td>
  </tr>`;
}

// Limits and money.

export function Limits({ state }) {
  const callers = Object.entries(state.callers);
  const { cloud } = state.house;
  return html`<${Panel} title="Limits and budgets" id="limits-title">
    ${callers.length ? html`<div class="scroll"><table class="limits"><caption class="hidden">Use of rate limits by caller</caption>
      <thead><tr><th scope="col">Caller</th><th scope="col">Last minute</th><th scope="col">Last hour</th></tr></thead>
      <tbody>${callers.map(([name, used]) => html`<tr key=${name}><th scope="row">${name}</th>
        <td><${Use} name=${`${name}, last minute`} used=${used.minute} /></td><td><${Use} name=${`${name}, last hour`} used=${used.hour} /></td></tr>`)}</tbody>
    </table></div>` : html`<${Empty}>No other program has called within the last hour.<//>`}
    ${cloud && (cloud.state !== "off" || cloud.spent_today_usd > 0 || cloud.internal_spent_today_usd > 0) ? html`<${Cloud} cloud=${cloud} />` : null}
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
    <p class="muted small">${cloud.running ? `${cloud.running} running · ` : ""}${usd(cloud.reserved_usd)} set aside · house ${usd(cloud.internal_spent_today_usd)}</p></div>`;
}

// How the house is.

export function House({ state, now, orders, ask }) {
  const { house, you } = state;
  const { config, alerts, storage } = house;
  const targets = alerts?.targets ?? [];
  const active = alerts?.active ?? [];
  const announced = Object.entries(house.announced).sort((a, b) => a[1] - b[1]);
  return html`<${Panel} title="House" id="house-title">
    <ul class="facts">
      <li><span class=${`dot ${active.length ? "warn" : "ok"}`}></span>${active.length ? `${active.length} ${active.length === 1 ? "alert stands" : "alerts stand"}, see above.` : "No alert stands."}</li>
      ${config.problems.map((problem) => html`<li key=${problem}><span class="dot bad"></span><code>${problem}</code></li>`)}
      <li><span class=${`dot ${config.problems.length ? "bad" : config.restart_pending.length ? "warn" : "ok"}`}></span>
        <span>Configuration ${config.generation}, ${config.source === "defaults" ? "built-in defaults" : html`<code>${config.source}</code>`}, since ${day(config.loaded_wall, now)}
        ${config.restart_pending.length ? html`; <b>a restart is needed for ${config.restart_pending.join(", ")}</b>` : null}</span></li>
      ${storage ? html`<li><span class=${`dot ${storage.state === "ok" ? "ok" : "bad"}`}></span>${storage.state === "ok" ? "The log is written." : `The log is not written: ${storage.state}; ${count(storage.waiting_rows)} rows wait.`}</li>` : null}
      ${targets.map((each) => html`<li key=${each.name}><span class=${`dot ${each.state === "stopped" ? "bad" : each.failed ? "warn" : "ok"}`}></span>
        <span>Alerts to ${each.name} <span class="muted">${each.host}</span>: ${each.state}, ${count(each.sent)} sent${each.failed ? `, ${count(each.failed)} given up` : ""}</span></li>`)}
      ${announced.map(([task, at]) => html`<li key=${task}><span class="dot"></span><span><b>${task}</b> is due at ${day(at, now)}, ${whole(at - now)} from now</span></li>`)}
      <li><span class="dot"></span><span>${house.mode === "active" ? "Active hours: the house's own work interrupts" : "Quiet hours: nothing is interrupted"} · policy ${house.policy}${house.promotions ? ` · ${count(house.promotions)} promoted by age` : ""}</span></li>
    </ul>
    ${you.admin ? html`<div class="buttons left">
      <button onClick=${() => ask(orders.reload())}>Reload configuration</button>
      <button onClick=${() => ask(orders.preempt())}>Make room</button>
      ${state.orders?.paused?.length ? null : html`<button onClick=${() => ask(orders.pause())}>Pause others</button>`}
      ${state.orders?.draining ? null : html`<button onClick=${() => ask(orders.drain())}>Drain</button>`}
      ${targets.length ? html`<button onClick=${() => ask(orders.testAlerts())}>Test alerts</button>` : null}
    </div>` : null}
  <//>`;
}

// What has ended.

const PHASES = [
  ["queue", "waited"],
  ["swap", "swap"],
  ["first", "reading"],
  ["write", "writing"],
];

export function Recent({ state, now, all, toggle }) {
  const found = Object.entries(state.recent).sort((a, b) => Number(b[0]) - Number(a[0]));
  const items = all ? found : found.slice(0, ROWS_SHOWN);
  const longest = Math.max(0.001, ...items.map(([, item]) => item.total_s));
  return html`<${Panel} title="Ended lately" id="recent-title" className="ended" tools=${html`<span class="legend">${PHASES.map(([name, text]) => html`<span key=${name}><i class=${`phase ${name}`}></i>${text}</span>`)}</span>`}>
    ${items.length ? html`<div class="scroll"><table class="recent"><caption class="hidden">Requests that have ended, latest first, with the time each phase took</caption>
      <thead><tr><th scope="col">Ended</th><th scope="col">Caller</th><th scope="col">Model</th><th scope="col">Outcome</th>
        <th scope="col">Where its time went</th><th scope="col" class="number">Total</th><th scope="col" class="number">Tokens</th></tr></thead>
      <tbody>${items.map(([number, item]) => html`<${Ended} key=${number} item=${item} longest=${longest} now=${now} />`)}</tbody></table></div>
      ${found.length > ROWS_SHOWN ? html`<button class="quiet small" aria-expanded=${String(Boolean(all))} onClick=${toggle}>${all ? "Fewer" : `All ${found.length}`}</button>` : null}`
      : html`<${Empty}>${state.you.admin ? "Nothing has ended yet." : "None of your requests has ended yet."}<//>`}
  <//>`;
}

function Ended({ item, longest, now }) {
  const tone = { completed: "ok", failed: "bad", expired: "warn", cancelled: "" }[item.outcome] ?? "";
  return html`<tr>
    <td class="time muted" title=${whole(now - item.ended) + " ago"}>${clock(item.ended)}</td>
    <td><${Lane} item=${item} /> <b class="caller">${item.caller}</b>${item.task_type ? html` <span class="muted">${item.task_type}</span>` : null}</td>
    <td><${Model} name=${item.model} /></td>
    <td class="outcome"><span class=${`dot ${tone}`}></span> ${item.outcome}${item.reason && item.reason !== item.outcome ? html` <span class="muted">${item.reason}</span>` : null}
      ${item.interrupts ? html` <span class="badge warn">${item.interrupts}× ${item.resumed ?? "interrupted"}</span>` : null}</td>
    <td class="phases"><${Phases} item=${item} longest=${longest} /></td>
    <td class="number">${duration(item.total_s)}</td>
    <td class="number">${item.prompt_tokens == null && item.output_tokens == null ? "–" : html`${count(item.prompt_tokens)} <span class="muted">→</span> ${count(item.output_tokens)}`}</td>
  </tr>`;
}

export function phasesOf(item) {
  const swap = Math.min(item.swap_s ?? 0, item.queue_s);
  const first = Math.min(item.first_byte_s ?? 0, item.backend_s ?? 0);
  return { queue: item.queue_s - swap, swap, first, write: Math.max(0, (item.backend_s ?? 0) - first) };
}

function Phases({ item, longest }) {
  const phases = phasesOf(item);
  const text = PHASES.filter(([name]) => phases[name] >= 0.05).map(([name, word]) => `${word} ${duration(phases[name])}`).join(", ") || "no time at all";
  return html`<span class="bar" role="img" aria-label=${text} title=${text}>${PHASES.map(([name]) => phases[name] > 0
    ? html`<i key=${name} class=${`phase ${name}`} style=${{ width: `${(phases[name] / longest) * 100}%` }}></i>` : null)}</span>`;
}
