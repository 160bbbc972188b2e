// What is in GPU memory, and how much of it is free.

import { html } from "./vendor/htm-preact-3.1.1.module.js";
import { shadeClass } from "./colours.js";
import { count, gib, rate, short, tokensPerSecond, whole } from "./format.js";
import { Empty, Model, Panel } from "./parts.js";
import { Link } from "./router.js";

export function Memory({ state, now, orders, ask }) {
  const { gpu } = state;
  const residents = Object.entries(state.residents);
  const title = gpu.unified_memory ? "Unified memory" : "GPU memory";
  const tools = html`<${Link} to="models">All models<//>
    ${state.you.admin && ask
      ? html`<button class="small" onClick=${() => ask(orders.yieldGpu())}>Yield the GPU</button>`
      : null}`;
  return html`<${Panel} title=${title} id="memory-title" note=${gpu.device ?? ""} tools=${tools}>
    <${MemoryBar} state=${state} />
    ${residents.length
      ? html`<ul class="residents">${residents.map(([name, each]) => html`<${Resident}
          key=${name} name=${name} each=${each} now=${now} state=${state} />`)}</ul>`
      : html`<${Empty}>No model is loaded.<//>`}
    <${Asleep} sleepers=${Object.entries(state.sleepers ?? {})} now=${now} />
  <//>`;
}

// In one line, who sleeps: at which level, with how much of main memory and of the GPU.
function Asleep({ sleepers, now }) {
  if (!sleepers.length) return null;
  const each = ([name, { level, host_mib: host, residual_mib: kept, since }]) => {
    const parts = [
      level,
      host ? `${gib(host)} of main memory` : "",
      kept ? `${gib(kept)} of the GPU` : "",
      `for ${whole(now - since)}`,
    ];
    return `${short(name)} (${parts.filter(Boolean).join(", ")})`;
  };
  return html`<p class="muted" id="asleep">Asleep: ${sleepers.map(each).join("; ")}</p>`;
}

// What has which part of the memory, and what is free.
export function MemoryBar({ state }) {
  const { gpu } = state;
  const residents = Object.entries(state.residents);
  const used = residents.reduce((sum, [, each]) => sum + (each.reserved_mib ?? 0), 0);
  const foreign = gpu.foreign_mib ?? 0;
  const capacity = gpu.capacity_mib ?? gpu.memory_total_mib;
  const most = Math.max(capacity ?? 0, used + foreign) || 1;
  const width = (mib) => ({ width: `${(mib / most) * 100}%` });
  const known = residents.filter(([, each]) => each.reserved_mib);
  return html`<div class="vram" role="img" aria-label=${labelOf(residents, foreign, capacity)}>
      ${known.map(([name, each]) => html`<i key=${name} style=${width(each.reserved_mib)}
        class=${`${shadeClass(name)} ${each.phase}`}
        title=${`${name}: ${gib(each.reserved_mib)}`}></i>`)}
      ${foreign > 0
        ? html`<i class="foreign" style=${width(foreign)}
            title=${`other programs: ${gib(foreign)}`}></i>`
        : null}
    </div>
    <p class="vram-legend">
      <span>${gib(used)} reserved${foreign > 0 ? ` · ${gib(foreign)} other programs` : ""}</span>
      <span>${capacity == null
        ? "GPU size unknown: one model at a time"
        : `${gib(Math.max(0, capacity - used - foreign))} free of ${gib(capacity)}`}</span>
    </p>`;
}

function labelOf(residents, foreign, capacity) {
  const parts = residents.map(([name, each]) => `${short(name)} ${gib(each.reserved_mib)}`);
  if (foreign > 0) parts.push(`other programs ${gib(foreign)}`);
  const size = capacity == null ? "size unknown" : `of ${gib(capacity)}`;
  return `${parts.join(", ") || "empty"}; ${size}`;
}

function Resident({ name, each, now, state }) {
  const size = each.reserved_mib == null ? "size unknown" : gib(each.reserved_mib);
  return html`<li><${Model} name=${name} /><span class="grow"></span>
    <span class="number">${size}</span>
    <span class="below muted"><${Badges} name=${name} state=${state} />
      ${detailOf(name, each, now, state)}</span></li>`;
}

function Badges({ name, state: { orders, gpu } }) {
  const badges = [
    orders?.loads?.includes(name) ? ["", "will be loaded"] : null,
    orders?.unloads?.includes(name) ? ["", "will be unloaded"] : null,
    gpu.home_model === name ? ["", "home"] : null,
    orders?.pinned === name ? ["pinned", "pinned"] : null,
  ].filter(Boolean);
  return html`${badges.map(([tone, text]) => html`<span key=${text} class=${`badge ${tone}`}>
      ${text}</span>`)}
    ${gpu.offloaded_models.includes(name)
      ? html`<span class="badge warn" title="part of the model runs on the CPU, which is slow">
          partly on CPU</span>`
      : null}`;
}

function detailOf(name, each, now, { house, models, recent }) {
  const busy = each.running ? `${each.running} of ${each.parallel} busy` : "idle";
  const speed = speedOf(name, recent);
  const parts = [
    house.backend.engines?.length > 1 ? models[name]?.engine : "",
    each.phase === "ready" ? busy : each.phase,
    each.waiting ? `${count(each.waiting)} waiting` : "",
    each.since ? `loaded for ${whole(now - each.since)}` : "",
    speed == null ? "" : rate(speed),
  ];
  return parts.filter(Boolean).join(" · ");
}

// The mean speed of what this model has answered lately.
function speedOf(name, recent) {
  const own = Object.values(recent).filter((item) => item.model === name);
  const speeds = own.map(tokensPerSecond).filter((speed) => speed != null);
  return speeds.length ? speeds.reduce((sum, speed) => sum + speed, 0) / speeds.length : null;
}
