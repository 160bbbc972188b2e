// The parts of the page. Each takes the state and the present time and returns elements; text is always a text node.

import { html } from "./vendor/htm-preact-3.1.1.module.js";
import { shadeClass } from "./colours.js";
import { summary } from "./charts.js";
import { clock, count, day, duration, ofExpected, percent, rate, runOf, short, startsIn, startsWithin, tokensPerSecond, usd, waitsFor, whole } from "./format.js";
import { Caller, CancelButton, Empty, Lane, Meter, Model, Panel } from "./parts.js";

const ROWS_SHOWN = 12;
const GROUPED_FROM = 12; // With more requests waiting than this, they are shown by model and caller.
const BUSY_ENOUGH_S = 600; // Before the GPU was busy for so long, the share of swaps says nothing.

// Tiles: the numbers that people look for first.

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
  const hour = summary(state, now, 3600);
  const telling = hour.busy + hour.swapping >= BUSY_ENOUGH_S;
  return html`<dl class=${`tiles ${gpu.readings === "ok" || gpu.readings === "lost" ? "" : "five"}`}>
    <${Tile} label="Running" value=${running.length} detail=${runningDetail(state, now)} />
    <${Tile} label="Waiting" value=${count(total)} detail=${total
      ? `${waiting.internal ? `${count(waiting.internal)} internal · ` : ""}next ${startsIn(first, now)}`
      : "no requests"} />
    <${Tile} label="Swap overhead, 1 h" value=${gpu.swap_overhead_pct_1h.toFixed(1)} unit="%"
      tone=${telling && gpu.swap_overhead_pct_1h > gpu.limits.swap_overhead_pct ? "bad" : ""}
      detail=${telling ? `warns above ${gpu.limits.swap_overhead_pct} %` : "meaningful after 10 min of work"}>
      <${Meter} beyond label="Swap overhead against its warning" value=${gpu.swap_overhead_pct_1h} most=${telling ? gpu.limits.swap_overhead_pct : 100}
        text=${percent(gpu.swap_overhead_pct_1h)} /></${Tile}>
    <${Tile} label="Swaps, 1 h" value=${gpu.swaps_this_hour}
      tone=${gpu.limits.swaps_per_hour != null && gpu.swaps_this_hour > gpu.limits.swaps_per_hour ? "bad" : ""} detail=${swapDetail(gpu)}>
      ${gpu.limits.swaps_per_hour == null ? null : html`<${Meter} beyond label="Swaps against their warning" value=${gpu.swaps_this_hour}
        most=${gpu.limits.swaps_per_hour} text=${String(gpu.swaps_this_hour)} />`}</${Tile}>
    ${gpuTile(gpu)}
    <${Tile} label="Done, 24 h" value=${count((stats.internal_completed ?? 0) + (stats.external_completed ?? 0))}
      tone=${failed ? "warn" : ""} detail=${`${count(failed)} failed · ${count(interrupted)} interrupted · ${count(stats.rejected ?? 0)} refused`} />
  </dl>`;
}

function runningDetail(state, now) {
  const { swap } = state.gpu;
  if (!state.house.backend.up) return "model server down";
  if (swap?.to) return `loading ${short(swap.to)}, ${whole(now - swap.since)}`;
  if (swap) return "unloading a model";
  const names = [...new Set(Object.values(state.running).map((item) => short(item.model)))];
  if (names.length) return `on ${names.join(", ")}`;
  return state.gpu.loaded_model ? `${short(state.gpu.loaded_model)} is ready` : "no model loaded";
}

function swapDetail(gpu) {
  const warning = gpu.limits.swaps_per_hour;
  const parts = [
    gpu.swap_failures_1h ? `${gpu.swap_failures_1h} failed` : "",
    warning == null ? "" : `warns above ${warning}`,
    gpu.avg_swap_ms == null ? "" : `last ${duration(gpu.last_swap_ms / 1000)}`,
  ].filter(Boolean);
  return parts.join(" · ") || "none failed";
}

function gpuTile(gpu) {
  if (gpu.readings === "lost") return html`<${Tile} label="GPU" value="–" tone="bad" detail="stopped answering" />`;
  if (gpu.readings !== "ok") return null; // No GPU, or its numbers are not read: there is nothing to show.
  const power = gpu.power_w == null ? "" : ` · ${Math.round(gpu.power_w)} W`;
  const hot = gpu.temperature_c != null && gpu.temperature_c >= gpu.limits.temperature_c;
  const heat = gpu.temperature_c == null ? "" : `${Math.round(gpu.temperature_c)} °C`;
  return html`<${Tile} label="GPU" value=${gpu.utilisation_pct == null ? "–" : Math.round(gpu.utilisation_pct)} unit="%" tone=${hot ? "bad" : ""}
    detail=${`${heat}${power}${gpu.throttled ? ` · throttled: ${gpu.throttle_reasons.join(", ")}` : ""}` || gpu.device} />`;
}

// What runs.

export function Running({ state, now, orders, ask, show }) {
  const down = !state.house.backend.up;
  const items = Object.values(state.running).sort((a, b) => a.dispatched - b.dispatched || a.sequence - b.sequence);
  const { swap } = state.gpu;
  return html`<${Panel} title="Running now" id="running-title" className="now" note=${items.length ? `${items.length} on the GPU` : ""}>
    <div class="box">${swap ? html`<${SwapRow} swap=${swap} now=${now} />` : null}
    ${items.length || swap ? null : html`<${Empty}>Nothing is running. ${down ? "The model server does not answer." : state.gpu.loaded_model
      ? `${short(state.gpu.loaded_model)} is loaded and ready.` : "No model is loaded."}<//>`}
    <ul class="runs">${items.map((item) => html`<${Run} key=${item.sequence} item=${item} now=${now} state=${state} orders=${orders} ask=${ask} show=${show} />`)}</ul></div>
  <//>`;
}

function SwapRow({ swap, now }) {
  const passed = now - swap.since;
  const names = { waiting: swap.to ? "a request waits for it" : "a request waits for another model", overdue: "a request has waited too long", home: "back to the home model", reload: "loaded again", turn: "turn of external requests", lease: "for another program" };
  const what = swap.to ? `${swap.from.length ? `${swap.from.map(short).join(", ")} → ` : ""}${short(swap.to)}` : swap.cutting ? short(swap.cutting) : swap.unloading.map(short).join(", ");
  return html`<div class="run swapping">
    <div class="run-head"><span class="badge swap">${swap.to ? "swap" : swap.cutting ? "load cut" : "unload"}</span><b>${what}</b>
      <span class="grow muted">${names[swap.why] ?? swap.why}</span><span class="number" title=${expectedTitle(swap.cost_s)}>${ofExpected(passed, swap.cost_s)}</span></div>
    <${Progress} part=${swap.cost_s ? passed / swap.cost_s : 0} className="swap" label=${`Swap, ${duration(passed)}`} />
  </div>`;
}

function Progress({ part, className, label }) {
  const width = `${Math.min(1, Math.max(0, part)) * 100}%`;
  return html`<span class=${`progress ${className} ${part > 1 ? "late" : ""}`} role="img" aria-label=${label}><i style=${{ width }}></i></span>`;
}

function Run({ item, now, state, orders, ask, show }) {
  const passed = now - item.dispatched;
  const expected = item.expected_end - item.dispatched;
  const phase = phaseOf(item);
  return html`<li class="run">
    <div class="run-head">
      <${Lane} item=${item} /><${Caller} item=${item} show=${show} /><${Model} name=${item.model} />
      ${item.task_type ? html`<span class="muted">${item.task_type}</span>` : null}
      ${item.interrupts ? html`<span class="badge warn" title="how often an internal request interrupted it">${item.interrupts}× interrupted</span>` : null}
      <span class="grow muted">${phase}</span>
      <span class="number" title=${expectedTitle(expected)}>${ofExpected(passed, expected)}</span>
      <${CancelButton} item=${item} state=${state} orders=${orders} ask=${ask} />
    </div>
    <${Progress} part=${expected > 0 ? passed / expected : 0} className=${shadeClass(item.model)} label=${ofExpected(passed, expected)} />
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

// What is waiting.

export function Waiting({ state, now, orders, ask, show, grouped, group }) {
  const { waiting } = state;
  const total = waiting.internal + waiting.external;
  const rows = waiting.order.map((sequence) => waiting.rows[sequence]).filter(Boolean);
  const inGroups = grouped ?? total > GROUPED_FROM;
  const tools = group && html`<span class="segmented" role="group" aria-label="How waiting requests are shown">${[[false, "One by one"], [true, "Grouped"]].map(([value, text]) => html`<button
    key=${text} aria-pressed=${String(inGroups === value)} onClick=${() => group(value)}>${text}</button>`)}</span>`;
  return html`<${Panel} title="Waiting" id="waiting-title" className="line" tools=${tools} note=${total ? `${count(total)}, in expected order` : ""}>
    <div class="box scroll">${!rows.length ? html`<${Empty}>No requests are waiting.<//>`
      : inGroups ? html`<${Groups} rows=${rows} models=${waiting.models} total=${total} shown=${rows.length} now=${now} />`
      : html`<table class="queue"><caption class="hidden">Waiting requests in the order in which they are expected to start</caption>
      <thead><tr><th scope="col" class="number">#</th><th scope="col">Caller</th><th scope="col">Model</th><th scope="col">Waits for</th>
        <th scope="col" class="number">Waited</th><th scope="col" class="number">Starts</th><th><span class="hidden">Cancel</span></th></tr></thead>
      <tbody>${rows.map((item) => html`<${Row} key=${item.sequence} item=${item} index=${waiting.order.indexOf(item.sequence)} now=${now} state=${state} orders=${orders} ask=${ask} show=${show} />`)}</tbody>
    </table>`}${total > rows.length && rows.length && !inGroups ? html`<p class="more">and ${count(total - rows.length)} more</p>` : null}</div>
  <//>`;
}

// By model, and in it by caller. The gateway counts every model; of callers only the first requests in line are known.
function Groups({ rows, models, total, shown, now }) {
  const groups = new Map();
  for (const item of rows) {
    const key = item.model ?? "*";
    if (!groups.has(key)) groups.set(key, { model: item.model, callers: new Map(), oldest: Infinity, next: null, known: 0 });
    const group = groups.get(key);
    group.callers.set(item.caller, (group.callers.get(item.caller) ?? 0) + 1);
    group.oldest = Math.min(group.oldest, item.arrived);
    group.next ??= item.start;
    group.known += 1;
  }
  for (const [name, number] of Object.entries(models)) if (!groups.has(name)) groups.set(name, { model: name === "*" ? null : name, callers: new Map(), next: null, known: 0, number });
  return html`<table class="groups"><caption class="hidden">Waiting requests by model</caption>
    <thead><tr><th scope="col">Model</th><th scope="col" class="number">Waiting</th><th scope="col">Callers</th><th scope="col" class="number">Longest wait</th><th scope="col" class="number">Next starts</th></tr></thead>
    <tbody>${[...groups].map(([key, group]) => html`<tr key=${key}><td><${Model} name=${group.model} /></td><td class="number">${count(models[key] ?? group.number ?? group.known)}</td>
      <td>${[...group.callers].map(([name, number]) => html`<span class="chip" key=${name}>${name} <span class="muted">${count(number)}</span></span>`)}</td>
      <td class="number">${group.oldest === undefined || group.oldest === Infinity ? "–" : whole(now - group.oldest)}</td><td class="number">${startsIn(group.next, now)}</td></tr>`)}</tbody></table>
    ${total > shown ? html`<p class="more">Only the callers of the first ${count(shown)} requests are shown.</p>` : null}`;
}

function startTitle(item, now) {
  const bound = item.bound == null ? "" : `90 % of such requests start ${startsWithin(item.bound, now)}`;
  return [bound, item.rough ? "a guess: little is known yet about a model ahead of it" : ""].filter(Boolean).join("; ") || null;
}

function Row({ item, index, now, state, orders, ask, show }) {
  return html`<tr>
    <td class="number muted">${index + 1}</td>
    <td><${Lane} item=${item} /> <${Caller} item=${item} show=${show} />${item.task_type ? html` <span class="muted">${item.task_type}</span>` : null}
      ${item.interrupts ? html` <span class="badge warn">${item.interrupts}×</span>` : null}</td>
    <td><${Model} name=${item.model} /></td>
    <td class="why">${waitsFor(item.why, index, now)}</td>
    <td class="number">${whole(now - item.arrived)}</td>
    <td class="number" title=${startTitle(item, now)}>${startsIn(item.start, now)}${item.rough && item.start != null ? " ?" : null}</td>
    <td class="end"><${CancelButton} item=${item} state=${state} orders=${orders} ask=${ask} /></td>
  </tr>`;
}

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

function hoursOf({ mode, hours }, now) {
  const until = hours.changes == null ? "" : ` until ${day(hours.changes, now)}`;
  return mode === "active" ? `Active hours${until}: internal requests interrupt others` : `Quiet hours${until}: nothing is interrupted`;
}

// Configuration, log, alerts, and the admin commands.

export function Gateway({ state, now, orders, ask }) {
  const { house, you } = state;
  const { config, alerts, storage } = house;
  const targets = alerts?.targets ?? [];
  const announced = Object.entries(house.announced).sort((a, b) => a[1] - b[1]);
  return html`<${Panel} title="Gateway" id="gateway-title">
    <ul class="facts">
      ${config.problems.map((problem) => html`<li key=${problem}><span class="dot bad"></span><code>${problem}</code></li>`)}
      <li><span class=${`dot ${config.problems.length ? "bad" : config.restart_pending.length ? "warn" : "ok"}`}></span>
        <span>Configuration ${config.generation}, ${config.source === "defaults" ? "built-in defaults" : html`<code>${config.source}</code>`}, since ${day(config.loaded_wall, now)}
        ${config.restart_pending.length ? html`; <b>restart needed for ${config.restart_pending.join(", ")}</b>` : null}</span></li>
      ${storage ? html`<li><span class=${`dot ${storage.state === "ok" ? "ok" : "bad"}`}></span>${storage.state === "ok" ? "The request log is being written." : `The request log is not written (${storage.state}); ${count(storage.waiting_rows)} rows are waiting.`}</li>` : null}
      ${targets.map((each) => html`<li key=${each.name}><span class=${`dot ${each.problem ? "bad" : each.failed ? "warn" : "ok"}`}></span>
        <span>Alerts to ${each.name} <span class="muted">${each.host}</span>: ${each.state}, ${count(each.sent)} sent${each.failed ? `, ${count(each.failed)} failed` : ""}${each.problem ? html`<br /><b>${each.problem}</b>` : null}</span></li>`)}
      ${announced.map(([task, at]) => html`<li key=${task}><span class="dot"></span><span><b>${task}</b> is due at ${day(at, now)}, in ${whole(at - now)}</span></li>`)}
      <li><span class="dot"></span><span title=${`scheduling.active_hours: ${house.hours.windows.join(", ") || "none"}`}>${hoursOf(house, now)} · policy ${house.policy}${house.promotions ? ` · ${count(house.promotions)} promoted by age` : ""}</span></li>
    </ul>
    ${you.admin && ask ? html`<div class="buttons left">
      <button onClick=${() => ask(orders.reload())}>Reload configuration</button>
      <button onClick=${() => ask(orders.preempt())}>Interrupt others</button>
      ${state.orders?.paused?.length ? null : html`<button onClick=${() => ask(orders.pause())}>Pause others</button>`}
      ${state.orders?.draining ? null : html`<button onClick=${() => ask(orders.drain())}>Drain</button>`}
      ${targets.length ? html`<button onClick=${() => ask(orders.testAlerts())}>Test alerts</button>` : null}
    </div>` : null}
  <//>`;
}

// What has ended.

const PHASES = [
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
    <div class="box scroll">${refused ? html`<${Refusals} ...${props} />` : html`<${Endings} ...${props} />`}</div><//>`;
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

function Phases({ item, longest }) {
  const phases = phasesOf(item);
  const text = PHASES.filter(([name]) => phases[name] >= 0.05).map(([name, word]) => `${word} ${duration(phases[name])}`).join(", ") || "less than 50 ms";
  return html`<span class="bar" role="img" aria-label=${text} title=${text}>${PHASES.map(([name]) => phases[name] > 0
    ? html`<i key=${name} class=${`phase ${name}`} style=${{ width: `${(phases[name] / longest) * 100}%` }}></i>` : null)}</span>`;
}
