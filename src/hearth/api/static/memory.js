// What is in GPU memory, what could be, and the commands about it.

import { html } from "./vendor/htm-preact-3.1.1.module.js";
import { shadeClass } from "./colours.js";
import { count, gib, rate, short, tokensPerSecond, whole } from "./format.js";
import { Empty, Model, Panel } from "./parts.js";

export function Memory({ state, now, orders, ask }) {
  const { gpu } = state;
  const residents = Object.entries(state.residents);
  const others = Object.values(state.models).filter((model) => !state.residents[model.name]);
  const tools = state.you.admin && ask ? html`<button class="small" onClick=${() => ask(orders.yieldGpu())}>Yield the GPU</button>` : null;
  return html`<${Panel} title=${gpu.unified_memory ? "Unified memory" : "GPU memory"} id="memory-title" note=${gpu.device ?? ""} tools=${tools}>
    <${MemoryBar} state=${state} />
    <div class="box">${residents.length ? html`<ul class="residents">${residents.map(([name, each]) => html`<${Resident} key=${name} name=${name} each=${each} now=${now} state=${state} orders=${orders} ask=${ask} />`)}</ul>`
      : html`<${Empty}>No model is loaded.<//>`}</div>
    ${others.length && ask ? html`<details class="others"><summary>${others.length} more installed</summary><ul class="residents">
      ${others.map((model) => html`<li key=${model.name}><${Model} name=${model.name} /><${Badges} name=${model.name} home=${model.home} state=${state} />
        <span class="grow muted">${model.installed ? (model.waiting ? `${count(model.waiting)} waiting` : "") : "not installed"}</span>
        ${model.installed ? html`<${Pin} name=${model.name} state=${state} orders=${orders} ask=${ask} />
          <button class="small" aria-label=${`Load ${short(model.name)}`} onClick=${() => ask(state.you.admin ? orders.load(model.name) : orders.request(model.name))}>Load</button>` : null}</li>`)}
    </ul></details>` : null}
  <//>`;
}

// What has which part of the memory, and what is free.
export function MemoryBar({ state }) {
  const { gpu } = state;
  const residents = Object.entries(state.residents);
  const used = residents.reduce((sum, [, each]) => sum + (each.reserved_mib ?? 0), 0);
  const foreign = gpu.foreign_mib ?? 0;
  const capacity = gpu.capacity_mib ?? gpu.memory_total_mib;
  const whole_ = Math.max(capacity ?? 0, used + foreign) || 1;
  const free = capacity == null ? null : Math.max(0, capacity - used - foreign);
  return html`<div class="vram" role="img" aria-label=${vramLabel(residents, foreign, capacity)}>
      ${residents.map(([name, each]) => each.reserved_mib ? html`<i key=${name} class=${`${shadeClass(name)} ${each.phase}`}
        style=${{ width: `${(each.reserved_mib / whole_) * 100}%` }} title=${`${name}: ${gib(each.reserved_mib)}`}></i>` : null)}
      ${foreign > 0 ? html`<i class="foreign" style=${{ width: `${(foreign / whole_) * 100}%` }} title=${`other programs: ${gib(foreign)}`}></i>` : null}
    </div>
    <p class="vram-legend"><span>${gib(used)} reserved${foreign > 0 ? ` · ${gib(foreign)} other programs` : ""}</span>
      <span>${capacity == null ? "GPU size unknown: one model at a time" : `${gib(free)} free of ${gib(capacity)}`}</span></p>`;
}

function vramLabel(residents, foreign, capacity) {
  const parts = residents.map(([name, each]) => `${short(name)} ${gib(each.reserved_mib)}`);
  if (foreign > 0) parts.push(`other programs ${gib(foreign)}`);
  return `${parts.join(", ") || "empty"}; ${capacity == null ? "size unknown" : `of ${gib(capacity)}`}`;
}

function Badges({ name, home, state }) {
  const { loads, unloads } = state.orders ?? {};
  return html`${loads?.includes(name) ? html`<span class="badge">will be loaded</span>` : null}${unloads?.includes(name) ? html`<span class="badge">will be unloaded</span>` : null}${home ? html`<span class="badge">home</span>` : null}${state.orders?.pinned === name ? html`<span class="badge pinned">pinned</span>` : null}`;
}

// Which engine has a model, where there are several.
function engineOf(name, state) {
  return state.house.backend.engines?.length > 1 ? state.models[name]?.engine : null;
}

function Pin({ name, state, orders, ask }) {
  if (!state.you.admin || !ask) return null;
  const pinned = state.orders?.pinned === name;
  return html`<button class="small" aria-label=${`${pinned ? "Unpin" : "Pin"} ${short(name)}`}
    onClick=${() => ask(pinned ? orders.unpin(name) : orders.pin(name))}>${pinned ? "Unpin" : "Pin"}</button>`;
}

// The mean speed of what this model has answered lately.
function speedOf(name, recent) {
  const speeds = Object.values(recent).filter((item) => item.model === name).map(tokensPerSecond).filter((speed) => speed != null);
  return speeds.length ? speeds.reduce((sum, speed) => sum + speed, 0) / speeds.length : null;
}

function Resident({ name, each, now, state, orders, ask }) {
  const home = state.gpu.home_model === name;
  const speed = speedOf(name, state.recent);
  const split = state.gpu.offloaded_models.includes(name);
  const engine = engineOf(name, state);
  const phase = each.phase === "ready" ? (each.running ? `${each.running} of ${each.parallel} busy` : `idle`) : each.phase;
  return html`<li><${Model} name=${name} /><span class="grow"></span><span class="number">${each.reserved_mib == null ? "size unknown" : gib(each.reserved_mib)}</span>
    <span class="below muted"><${Badges} name=${name} home=${home} state=${state} />
      ${split ? html`<span class="badge warn" title="part of the model runs on the CPU, which is slow">partly on CPU</span>` : null}
      ${engine ? `${engine} · ` : ""}${phase}${each.waiting ? ` · ${count(each.waiting)} waiting` : ""}${each.since ? ` · loaded for ${whole(now - each.since)}` : ""}${speed == null ? "" : ` · ${rate(speed)}`}
      ${state.you.admin && ask ? html`<span class="pair"><${Pin} name=${name} state=${state} orders=${orders} ask=${ask} />
        <button class="small" aria-label=${`Unload ${short(name)}`} onClick=${() => ask(orders.unload(name))}>Unload</button></span>` : null}</span></li>`;
}
