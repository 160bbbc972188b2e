// The numbers that people look for first.

import { html } from "./vendor/htm-preact-3.1.1.module.js";
import { summary } from "./charts.js";
import { count, duration, gib, percent, short, startsIn, whole } from "./format.js";
import { Meter } from "./parts.js";

const HOUR_S = 3600;
const BUSY_ENOUGH_S = 600; // Before the GPU was busy for so long, the share of swaps says nothing.

function Tile({ label, value, unit, detail, tone, children }) {
  return html`<div class=${`tile ${tone ?? ""}`}>
    <dt>${label}</dt>
    <dd><b>${value}</b>${unit ? html` <small>${unit}</small>` : null}</dd>
    ${children ? html`<dd>${children}</dd>` : null}
    <dd class="detail">${detail}</dd>
  </div>`;
}

export function Tiles({ state, now }) {
  const { gpu } = state;
  const five = gpu.readings === "ok" || gpu.readings === "lost" ? "" : "five";
  return html`<dl class=${`tiles ${five}`}>
    <${Tile} label="Running" value=${Object.keys(state.running).length}
      detail=${runningDetail(state, now)} />
    <${Line} state=${state} now=${now} />
    <${Gpu} gpu=${gpu} />
    <${SwapShare} state=${state} now=${now} />
    <${Swaps} gpu=${gpu} />
    <${Ended} stats=${state.house.stats} />
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

function Line({ state: { waiting }, now }) {
  const total = waiting.internal + waiting.external;
  const rows = waiting.order.map((sequence) => waiting.rows[sequence]);
  const first = rows.find((row) => row?.start != null)?.start;
  const internal = waiting.internal ? `${count(waiting.internal)} internal · ` : "";
  const detail = total ? `${internal}next ${startsIn(first, now)}` : "no requests";
  return html`<${Tile} label="Waiting" value=${count(total)} detail=${detail} />`;
}

// Without a GPU, or where its numbers are not read, there is nothing to show.
function Gpu({ gpu }) {
  if (gpu.readings === "lost") {
    return html`<${Tile} label="GPU" value="–" tone="bad" detail="stopped answering" />`;
  }
  if (gpu.readings !== "ok") return null;
  const hot = gpu.temperature_c != null && gpu.temperature_c >= gpu.limits.temperature_c;
  const load = gpu.utilisation_pct == null ? "–" : Math.round(gpu.utilisation_pct);
  const parts = [
    gpu.temperature_c == null ? "" : `${Math.round(gpu.temperature_c)} °C`,
    gpu.power_w == null ? "" : `${Math.round(gpu.power_w)} W`,
    gpu.memory_used_mib == null ? "" : `${gib(gpu.memory_used_mib)} used`,
    gpu.throttled ? `throttled: ${gpu.throttle_reasons.join(", ")}` : "",
  ].filter(Boolean);
  return html`<${Tile} label="GPU" value=${load} unit="%" tone=${hot ? "bad" : ""}
    detail=${parts.join(" · ") || gpu.device} />`;
}

function SwapShare({ state, now }) {
  const { gpu } = state;
  const share = gpu.swap_overhead_pct_1h;
  const limit = gpu.limits.swap_overhead_pct;
  const hour = summary(state, now, HOUR_S);
  const telling = hour.busy + hour.swapping >= BUSY_ENOUGH_S;
  return html`<${Tile} label="Swap overhead, 1 h" value=${share.toFixed(1)} unit="%"
    tone=${telling && share > limit ? "bad" : ""}
    detail=${telling ? `warns above ${limit} %` : "meaningful after 10 min of work"}>
    <${Meter} beyond label="Swap overhead against its warning" value=${share}
      most=${telling ? limit : 100} text=${percent(share)} /><//>`;
}

function Swaps({ gpu }) {
  const { swaps_this_hour: swaps } = gpu;
  const limit = gpu.limits.swaps_per_hour;
  return html`<${Tile} label="Swaps, 1 h" value=${swaps}
    tone=${limit != null && swaps > limit ? "bad" : ""} detail=${swapDetail(gpu)}>
    ${limit == null
      ? null
      : html`<${Meter} beyond label="Swaps against their warning" value=${swaps} most=${limit}
          text=${String(swaps)} />`}
  <//>`;
}

function swapDetail(gpu) {
  const warning = gpu.limits.swaps_per_hour;
  const parts = [
    gpu.swap_failures_1h ? `${gpu.swap_failures_1h} failed` : "",
    warning == null ? "" : `warns above ${warning}`,
    gpu.avg_swap_ms == null ? "" : `last ${duration(gpu.last_swap_ms / 1000)}`,
  ];
  return parts.filter(Boolean).join(" · ") || "none failed";
}

function Ended({ stats }) {
  const both = (name) => (stats[`internal_${name}`] ?? 0) + (stats[`external_${name}`] ?? 0);
  const failed = both("failed");
  const detail = [
    `${count(failed)} failed`,
    `${count(both("interrupted"))} interrupted`,
    `${count(stats.rejected ?? 0)} refused`,
  ];
  return html`<${Tile} label="Done, 24 h" value=${count(both("completed"))}
    tone=${failed ? "warn" : ""} detail=${detail.join(" · ")} />`;
}
