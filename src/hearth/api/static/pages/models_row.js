// One model: where it is, what it takes, what was measured, and what can be done with it.

import { html } from "../vendor/htm-preact-3.1.1.module.js";
import { count, duration, gib, rate, short } from "../format.js";
import { Icon } from "../icons.js";
import { Model } from "../parts.js";
import { Link } from "../router.js";
import { removal } from "./models_removal.js";

const HEADINGS = ["Model", "State", "Size", "Context", "Measured", "Warm"];
const SHOWN_SKILLS = ["vision", "tools", "thinking", "embedding"];

export function Head() {
  return html`<thead><tr>
    ${HEADINGS.map((title) => html`<th key=${title} scope="col">${title}</th>`)}
    <th scope="col"><span class="hidden">What can be done</span></th>
  </tr></thead>`;
}

export function ModelRow({ model, state, orders, ask, engine, manages }) {
  const skills = SHOWN_SKILLS.filter((name) => model.capabilities?.includes(name));
  const others = model.engines.filter((name) => name !== model.engine);
  return html`<tr class=${model.resident ? "loaded" : ""}>
    <th scope="row"><${Model} name=${model.name} />
      <span class="badges">${badgesOf(model).map(([text, tone]) => html`<span key=${text}
        class=${`badge ${tone}`}>${text}</span>`)}
        ${skills.map((name) => html`<span key=${name} class="badge skill">${name}</span>`)}
        ${others.length
          ? html`<span class="muted small">also on ${others.join(", ")}</span>`
          : null}
      </span></th>
    <${Cell} title="State" lines=${stateOf(model, state)} />
    <${Cell} title="Size" lines=${sizesOf(model)} />
    <${Cell} title="Context" lines=${contextsOf(model)} />
    <${Cell} title="Measured" lines=${measuresOf(model)} />
    <${Cell} title="Warm" lines=${warmOf(model)} />
    <td class="acts"><${Acts} model=${model} state=${state} orders=${orders} ask=${ask}
      engine=${engine} manages=${manages} /></td>
  </tr>`;
}

// The first line is what counts; the others say more of it.
function Cell({ title, lines }) {
  const [first, ...rest] = lines.filter(Boolean);
  return html`<td data-title=${title} class=${first ? "" : "nothing"}><span>${first ?? "–"}</span>
    ${rest.map((line) => html`<span key=${line} class="muted small">${line}</span>`)}</td>`;
}

function badgesOf(model) {
  const badges = [
    model.home ? ["home", ""] : null,
    model.pinned ? ["pinned", "pinned"] : null,
    model.remote ? ["another machine", "external"] : null,
    model.away ? ["away", "bad"] : null,
    model.installed ? null : ["not installed", "warn"],
    model.offloaded ? ["partly on CPU", "warn"] : null,
    ...model.aliases.map((alias) => [`alias ${alias}`, ""]),
  ];
  return badges.filter(Boolean);
}

function stateOf(model, state) {
  const busy = model.running ? `${model.running} of ${model.parallel} busy` : "idle";
  const waiting = model.waiting ? `${count(model.waiting)} waiting` : "";
  const { loads, unloads } = state.orders ?? {};
  if (!model.resident) {
    const ordered = loads?.includes(model.name);
    return [ordered ? "will be loaded" : "not loaded", fits(model, state), waiting];
  }
  const phase = model.phase === "ready" || model.phase == null ? "loaded" : model.phase;
  return [phase, unloads?.includes(model.name) ? "will be unloaded" : busy, waiting];
}

// Whether there is room for it now, by what it needs or at least takes.
function fits(model, state) {
  const { gpu } = state;
  const capacity = gpu.capacity_mib ?? gpu.memory_total_mib;
  const need = model.need_mib ?? model.file_mib;
  if (!need || capacity == null || model.remote) return "";
  const residents = Object.values(state.residents);
  const used = residents.reduce((sum, each) => sum + (each.reserved_mib ?? 0), 0);
  const foreign = gpu.foreign_mib ?? 0;
  if (need <= capacity - foreign - used) return residents.length ? "fits beside the rest" : "fits";
  return need <= capacity - foreign ? "another must go for it" : "larger than the free GPU";
}

function sizesOf(model) {
  const memory = model.vram_mib || model.size_mib;
  const needs = model.need_mib ? `needs ${gib(model.need_mib)}` : "";
  return [
    model.file_mib ? `${gib(model.file_mib)} on disk` : "",
    memory ? `${gib(memory)} in memory` : needs,
    model.offloaded && model.size_mib ? `of ${gib(model.size_mib)}` : "",
  ];
}

function contextsOf(model) {
  const { context_tokens: loaded, num_ctx: set, max_context_tokens: most } = model;
  return [
    loaded ? count(loaded) : set ? `${count(set)} set` : "",
    loaded && set && loaded !== set ? `${count(set)} set` : "",
    most ? `up to ${count(most)}` : "",
  ];
}

function measuresOf(model) {
  const { read_tokens_per_s: read, write_tokens_per_s: write, load_s: load } = model;
  return [
    write ? `writes ${rate(write)}` : "",
    read ? `reads ${rate(read)}` : "",
    load ? `loads in ${duration(load)}` : "",
  ];
}

function warmOf(model) {
  const { warm_conversations: warm, warm_tokens: tokens, saved_conversations: saved } = model;
  const what = warm === 1 ? "conversation" : "conversations";
  return [
    warm ? `${warm} ${what}` : "",
    warm ? `${count(tokens)} tokens` : "",
    saved ? `${saved} saved` : "",
  ];
}

function Acts({ model, state, orders, ask, engine, manages }) {
  const { admin } = state.you;
  const name = short(model.name);
  const talks = model.accepts?.includes("completion") ?? !model.name.includes("embed");
  const button = (verb, question, className = "small") => html`<button class=${className}
    aria-label=${`${verb} ${name}`} onClick=${() => ask(question)}>${verb}</button>`;
  return html`<span class="act-line">
    ${talks && model.installed
      ? html`<${Link} to="playground" values=${{ model: model.name }} class="button small"
          aria-label=${`Try ${name}`}>Try<//>`
      : null}
    ${model.loads && model.installed && !model.resident && !model.away
      ? button("Load", admin ? orders.load(model.name) : orders.request(model.name))
      : null}
    ${admin && model.loads && model.resident ? button("Unload", orders.unload(model.name)) : null}
    ${admin && model.installed
      ? button(
          model.pinned ? "Unpin" : "Pin",
          model.pinned ? orders.unpin(model.name) : orders.pin(model.name),
        )
      : null}
    ${manages && engine.can_delete && model.installed
      ? html`<button class="icon" aria-label=${`Delete ${name}`} title="Delete"
          onClick=${() => ask(removal(model, orders))}><${Icon} name="delete-outline" /></button>`
      : null}
  </span>`;
}
