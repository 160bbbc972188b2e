// Beside the conversation: which model, how it is to answer, and what it is asked with. Only what
// is set is sent.

import { html, Component } from "../vendor/htm-preact-3.1.1.module.js";
import { count, short } from "../format.js";
import { OPTIONS } from "../talk.js";

const FIELDS = {
  temperature: { label: "Temperature", hint: "0 to 2", min: 0, max: 2, step: 0.1 },
  top_p: { label: "Top p", hint: "0 to 1", min: 0, max: 1, step: 0.05 },
  num_predict: { label: "Most tokens", hint: "no limit", min: 1, step: 1 },
  seed: { label: "Seed", hint: "random", step: 1 },
};
const THINK = [
  ["", "as the model does"],
  ["on", "yes"],
  ["off", "no"],
  ["low", "a little (low)"],
  ["medium", "medium"],
  ["high", "much (high)"],
];
const SHOWN_SKILLS = ["vision", "tools", "thinking"];

export function Settings({ talk, model, choices, choose }) {
  const { system, options, think } = talk.kept;
  const set = (name, value) => talk.set({ options: { ...options, [name]: value } });
  const given = [...OPTIONS.map((name) => options[name]), think, system.trim()].filter(Boolean);
  return html`<section class="panel talk-settings" aria-labelledby="settings-title">
    <header><h2 id="settings-title">Model</h2></header>
    <${Choice} model=${model} choices=${choices} choose=${choose} />
    <p class="muted small about">${model ? about(model) : ""}</p>
    <details open=${innerWidth > 900}>
      <summary>System prompt and parameters${given.length ? ` (${given.length} set)` : ""}</summary>
      <label>System prompt<textarea rows="4" value=${system}
        placeholder="How the model is to answer"
        onInput=${(event) => talk.set({ system: event.target.value })}></textarea></label>
      <div class="fields">${OPTIONS.map((name) => html`<${Field} key=${name} name=${name}
        value=${options[name]} set=${set} />`)}</div>
      ${thinks(model) ? html`<${Think} talk=${talk} think=${think} />` : null}
      <p class="muted small">What is left empty is not sent: the model's own settings apply.</p>
    </details>
  </section>`;
}

// Drawn again only where it is another: there may be thousands.
class Choice extends Component {
  shouldComponentUpdate({ choices, model }) {
    return choices !== this.props.choices || model !== this.props.model;
  }

  render({ model, choices, choose }) {
    const aliases = choices.filter((each) => each.alias);
    const models = choices.filter((each) => !each.alias);
    return html`<label class="hidden" for="talk-model">Model</label>
      <select id="talk-model" value=${model?.name ?? ""}
        onChange=${(event) => choose(event.target.value)}>
        ${aliases.length
          ? html`<optgroup label="Aliases">${aliases.map(option)}</optgroup>
              <optgroup label="Models">${models.map(option)}</optgroup>`
          : models.map(option)}
      </select>`;
  }
}

function option({ name, alias }) {
  return html`<option key=${name} value=${name}>
    ${short(name)}${alias ? ` (${alias.join(", ")})` : ""}</option>`;
}

function about(model) {
  if (model.alias) return "An alias: whichever of its models is free first answers.";
  const can = SHOWN_SKILLS.filter((name) => model.capabilities?.includes(name));
  const context = model.context_tokens ?? model.num_ctx ?? model.max_context_tokens;
  return [
    model.resident ? "in memory" : "not loaded: the first answer takes longer",
    can.length ? `can do ${can.join(", ")}` : "",
    context ? `context of ${count(context)} tokens` : "",
  ].filter(Boolean).join(" · ");
}

function Field({ name, value, set }) {
  const { label, hint, ...limits } = FIELDS[name];
  return html`<label>${label}<input type="number" inputmode="decimal" value=${value ?? ""}
    placeholder=${hint} ...${limits}
    onInput=${(event) => set(name, event.target.value)} /></label>`;
}

function Think({ talk, think }) {
  return html`<label>Think<select value=${think}
    onChange=${(event) => talk.set({ think: event.target.value })}>
    ${THINK.map(([value, text]) => html`<option key=${value} value=${value}>${text}</option>`)}
  </select></label>`;
}

// Nothing is known of what some models can do: then they may be asked.
function thinks(model) {
  return Boolean(model) && (model.accepts?.includes("thinking") ?? true);
}
