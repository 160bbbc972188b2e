// The fields that the requests are searched by; each is in the address.

import { html, Component } from "../vendor/htm-preact-3.1.1.module.js";
import { short } from "../format.js";
import { Icon } from "../icons.js";
import { go } from "../router.js";

export const FILTERS = [
  "caller",
  "model",
  "outcome",
  "since",
  "until",
  "user",
  "engine",
  "lane",
  "task_type",
];
const FEW = ["caller", "model", "outcome", "since"];
const OUTCOMES = ["completed", "failed", "cancelled", "expired"];
const AGES = [
  ["1h", "last hour"],
  ["24h", "last 24 hours"],
  ["7d", "last 7 days"],
  ["30d", "last 30 days"],
  ["90d", "last 90 days"],
];

export class Search extends Component {
  state = { more: false };

  render({ filters, state, rows, choose }) {
    const more = this.state.more || Object.keys(filters).some((name) => !FEW.includes(name));
    const text = (name, title, values) => html`<${Text} key=${name} name=${name} title=${title}
      value=${filters[name]} values=${values} choose=${choose} />`;
    const list = (name, title, values) => html`<${List} key=${name} name=${name} title=${title}
      value=${filters[name]} values=${values} choose=${choose} />`;
    return html`<form class="requests-search" role="search" aria-label="Requests"
      onSubmit=${(event) => event.preventDefault()}>
      <${Id} />
      ${text("caller", "Caller", callersOf(state, rows))}
      ${text("model", "Model", Object.keys(state.models).concat(of(rows, "model")))}
      ${list("outcome", "Outcome", OUTCOMES.map((name) => [name, name]))}
      ${list("since", "Ended in the", AGES)}
      ${more
        ? [
            text("user", "User", of(rows, "user")),
            text("engine", "Engine", of(rows, "engine")),
            list("lane", "Lane", [["internal", "internal"], ["external", "external"]]),
            text("task_type", "Task type", of(rows, "task_type")),
            text("until", "Ended before (7d, or a time)", []),
          ]
        : html`<button type="button" class="quiet" onClick=${() => this.setState({ more: true })}>
            More fields</button>`}
      ${Object.keys(filters).length
        ? html`<button type="button" class="quiet" onClick=${() => go("requests")}>
            <${Icon} name="close" /> Clear</button>`
        : null}
    </form>`;
  }
}

// The id leads to the request's own page.
function Id() {
  const found = (event) => {
    const id = event.target.value.trim();
    if (id) go("requests", { id });
  };
  return html`<span class="field"><label for="search-id">Request id</label>
    <input id="search-id" type="search" autocomplete="off" spellcheck=${false} placeholder="req_…"
      onChange=${found} /></span>`;
}

function Text({ name, title, value, values, choose }) {
  const known = [...new Set(values)].filter(Boolean).sort();
  return html`<span class="field"><label for=${`search-${name}`}>${title}</label>
    <input id=${`search-${name}`} type="search" autocomplete="off" spellcheck=${false}
      list=${`search-${name}-known`} value=${value ?? ""} placeholder="any"
      onChange=${(event) => choose({ [name]: event.target.value.trim() })} />
    <datalist id=${`search-${name}-known`}>${known.map((each) => html`<option key=${each}
      value=${each}>${name === "model" ? short(each) : each}</option>`)}</datalist></span>`;
}

function List({ name, title, value, values, choose }) {
  const known = value && !values.some(([each]) => each === value) ? [[value, value]] : [];
  return html`<span class="field"><label for=${`search-${name}`}>${title}</label>
    <select id=${`search-${name}`} onChange=${(event) => choose({ [name]: event.target.value })}>
      <option value="">any</option>
      ${[...known, ...values].map(([each, text]) => html`<option key=${each} value=${each}
        selected=${each === value}>${text}</option>`)}
    </select></span>`;
}

function callersOf(state, rows) {
  if (!state.you.admin) return [state.you.caller];
  return [...Object.keys(state.callers), ...of(rows, "caller")];
}

function of(rows, name) {
  return rows.map((row) => row[name]).filter(Boolean);
}
