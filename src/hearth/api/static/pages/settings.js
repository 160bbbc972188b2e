// The configuration in force with the origin of each value, what the saved file would change, and
// the modes.

import { html, Component } from "../vendor/htm-preact-3.1.1.module.js";
import { Loaded } from "../fetching.js";
import { Modes } from "../modes.js";
import { Empty, Panel } from "../parts.js";
import { SavedFile } from "./settings_file.js";
import { originOf, rowsOf } from "./settings_rows.js";

const AGAIN_MS = 10_000;

export class Settings extends Component {
  componentDidMount() {
    const { feed, state } = this.props;
    this.config = new Loaded(feed, () => this.setState({}));
    this.file = new Loaded(feed, () => this.setState({}));
    if (!state.you.admin) return;
    this.known = this.now();
    this.ask();
    this.timer = setInterval(() => document.hidden || this.file.ask(), AGAIN_MS);
  }

  componentWillUnmount() {
    clearInterval(this.timer);
    this.config.close();
    this.file.close();
  }

  // Again where other settings are in force, or a file was refused.
  componentDidUpdate() {
    if (!this.props.state.you.admin || this.known === this.now()) return;
    this.known = this.now();
    this.ask();
  }

  now() {
    const { config, modes } = this.props.state.house;
    return JSON.stringify([config.generation, config.problems, modes?.mode]);
  }

  ask = () => {
    this.config.ask("/llm/admin/config");
    this.file.ask("/llm/admin/config/pending");
  };

  render({ state, now, orders, ask, query, go }) {
    const { answer, problem } = this.config ?? {};
    const isRead = (answer || problem) && (this.file.answer || this.file.problem);
    const shared = { state, now, orders, ask };
    if (!state.you.admin) {
      return html`<h1 class="hidden">Settings</h1>
        <${Modes} ...${shared} />
        <p class="muted">The settings themselves are shown to admins.</p>`;
    }
    // All at once, so that nothing moves.
    if (!isRead) return html`<h1 class="hidden">Settings</h1><${Empty}>One moment.<//>`;
    const turn = (values) =>
      go("settings", { ...Object.fromEntries(query), ...values }, { replace: true });
    return html`<h1 class="hidden">Settings</h1>
      <div class="settings-columns">
        <div class="column"><${InForce} page=${answer} problem=${problem} query=${query}
          turn=${turn} /></div>
        <div class="column">
          <${Modes} ...${shared} settings=${answer?.settings.modes} />
          <${SavedFile} ...${shared} page=${this.file.answer} problem=${this.file.problem}
            again=${() => this.file.ask()} />
        </div>
      </div>`;
  }
}

function InForce({ page, problem, query, turn }) {
  const all = query.get("show") === "all";
  const sought = (query.get("q") ?? "").toLowerCase();
  const rows = page ? rowsOf(page) : [];
  const shown = rows.filter(
    (row) => (all || row.origin) && `${row.name} ${row.text}`.toLowerCase().includes(sought),
  );
  const tools = html`<${Filter} all=${all} sought=${query.get("q") ?? ""} turn=${turn} />`;
  const set = rows.filter((row) => row.origin).length;
  return html`<${Panel} title="In force" id="in-force-title" className="in-force"
    note=${page ? `${set} of ${rows.length} are not the default` : ""} tools=${tools}>
    ${problem ? html`<p class="wrong" role="alert">${problem}</p>` : null}
    ${sectionsOf(shown).map(([section, own]) => html`<${Section} key=${section} name=${section}
      rows=${own} mode=${page.mode} />`)}
    ${shown.length || !page ? null : html`<${Empty}>${emptyText(sought, set)}<//>`}
  <//>`;
}

function emptyText(sought, set) {
  if (sought) return "No setting has this in its name or value.";
  return set ? "" : "Everything is the default.";
}

function Filter({ all, sought, turn }) {
  const choice = (value, text) => html`<button aria-pressed=${String(all === (value === "all"))}
    onClick=${() => turn({ show: value })}>${text}</button>`;
  return html`<input type="search" placeholder="Filter" aria-label="Filter settings" value=${sought}
      onInput=${(event) => turn({ q: event.target.value })} />
    <span class="segmented" role="group" aria-label="Which settings">
      ${choice(null, "Set by you")}${choice("all", "All")}</span>`;
}

function sectionsOf(rows) {
  const found = new Map();
  for (const row of rows) found.set(row.path[0], [...(found.get(row.path[0]) ?? []), row]);
  return [...found];
}

function toneOf({ origin }) {
  if (!origin) return "is-default";
  return origin.from === "mode" ? "is-of-mode" : "";
}

function Section({ name, rows, mode }) {
  return html`<section class="settings-section">
    <h3>${name}</h3>
    <dl>${rows.map((row) => html`<div key=${row.name} class=${toneOf(row)}>
      <dt><code>${row.path.length > 1 ? row.name.slice(name.length + 1) : row.name}</code></dt>
      <dd class="value"><code>${row.text}</code></dd>
      <dd class="origin">${originOf(row, mode)}</dd>
    </div>`)}</dl>
  </section>`;
}
