// Every model, by engine: what it takes, how fast it was measured to be, what is warm on it; and to
// load, pin, pull and delete them.

import { html, Component } from "../vendor/htm-preact-3.1.1.module.js";
import { Loaded } from "../fetching.js";
import { gib, short } from "../format.js";
import { Icon } from "../icons.js";
import { MemoryBar } from "../memory.js";
import { Empty } from "../parts.js";
import { pulls } from "../pulls.js";
import { Head, ModelRow } from "./models_row.js";
import { Pull, PullForm } from "./models_pull.js";

const SHOWN = 100;
const CALM_MS = 3000; // Models are asked for no more often, however much the feed has to say,
const MANY = 500; // and where there are more than this, less often.

export class Models extends Component {
  constructor(props) {
    super(props);
    this.state = { more: {} };
    this.loaded = new Loaded(props.feed, () => this.setState({}));
    this.asked = 0;
    this.seen = null;
  }

  componentDidMount() {
    pulls.changed = () => this.setState({});
    this.refresh();
  }

  componentDidUpdate() {
    this.refresh();
  }

  componentWillUnmount() {
    pulls.changed = () => {};
    clearTimeout(this.timer);
    this.loaded.close();
  }

  // Asks once more where the feed has something new about models.
  refresh() {
    const seen = signOf(this.props.state);
    if (seen === this.seen || this.timer) return;
    const ask = () => {
      this.timer = 0;
      this.asked = Date.now();
      this.seen = signOf(this.props.state);
      this.loaded.ask("/llm/models");
    };
    const many = Math.max(1, (this.loaded.answer?.models.length ?? 0) / MANY);
    const pause = this.asked + CALM_MS * many - Date.now();
    if (pause <= 0) ask();
    else this.timer = setTimeout(ask, pause);
  }

  find = (event) => {
    const find = event.target.value;
    this.props.go("models", { find }, { replace: true });
  };

  render({ state, query }) {
    const { answer, problem } = this.loaded;
    const find = query.get("find") ?? "";
    return html`<div class="models">
      <section class="panel" aria-labelledby="models-title">
        <header><h1 id="models-title">Models</h1>
          <span class="note">${answer ? summary(answer) : ""}</span>
          <span class="tools"><label class="hidden" for="find">Find a model</label>
            <input id="find" type="search" placeholder="Find a model" value=${find}
              onInput=${this.find} /></span></header>
        <${MemoryBar} state=${state} />
      </section>
      ${problem ? html`<p class="notice bad" role="alert">${problem}</p>` : null}
      ${answer
        ? answer.engines.map((engine) => html`<${Engine} key=${engine.name} page=${this}
            engine=${engine} ...${this.props} answer=${answer} find=${find} />`)
        : html`<p class="empty models-loading">${problem ? "" : "One moment."}</p>`}
    </div>`;
  }
}

// What of the feed may have changed something here.
function signOf(state) {
  const residents = Object.entries(state.residents).map(([name, { phase }]) => name + phase);
  const latest = Math.max(0, ...Object.keys(state.recent).map(Number));
  const engines = (state.house.backend.engines ?? []).map(({ name, up }) => name + up);
  const { pinned } = state.orders ?? {};
  return [Object.keys(state.models), residents, latest, engines, pinned].join();
}

function summary({ models }) {
  const installed = models.filter((model) => model.installed);
  const disk = installed.reduce((sum, model) => sum + (model.file_mib ?? 0), 0);
  const loaded = models.filter((model) => model.resident).length;
  return `${installed.length} installed${disk ? `, ${gib(disk)} on disk` : ""} · ${loaded} loaded`;
}

function Engine({ page, engine, answer, find, state, now, orders, ask, feed }) {
  const wanted = find.trim().toLowerCase();
  const listed = answer.models.filter((model) => model.engine === engine.name);
  const own = listed.map((model) => live(model, state));
  const found = own.filter((model) => matches(model, wanted));
  found.sort(found.length > SHOWN ? byUse : byName);
  const shown = page.state.more[engine.name] ?? SHOWN;
  const more = { ...page.state.more, [engine.name]: shown + SHOWN };
  const id = `engine-${engine.name}`;
  const manages = answer.may_manage;
  const coming = pulls.all.filter((pull) => pull.engine === engine.name);
  const shared = { state, now, orders, ask, engine, manages };
  return html`<section class="panel engine" aria-labelledby=${id}>
    <header><h2 id=${id}>${engine.name === "main" ? engine.title : engine.name}</h2>
      <span class="note">${noteOf(engine, own)}</span></header>
    ${manages ? html`<${PullForm} engine=${engine} feed=${feed} />` : null}
    ${coming.map((pull) => html`<${Pull} key=${pull.began} pull=${pull} />`)}
    ${found.length
      ? html`<div class="scroll"><table class="models-table"><${Head} />
          <tbody>${found.slice(0, shown).map((model) => html`<${ModelRow} key=${model.name}
            model=${model} ...${shared} />`)}</tbody></table></div>`
      : html`<${Empty}>${own.length ? "No model matches." : "It has no models."}<//>`}
    ${found.length > shown
      ? html`<button onClick=${() => page.setState({ more })}><${Icon} name="plus" /> Show more:
          ${found.length - shown} are left</button>`
      : null}
  </section>`;
}

const LIVE = ["resident", "phase", "running", "waiting", "home", "offloaded", "away", "installed"];

// With what the feed says now, where it says something: of very many models it has only some.
function live(model, state) {
  const now = state.models[model.name];
  if (!now) return model;
  const fresh = Object.fromEntries(LIVE.map((name) => [name, now[name] ?? model[name] ?? null]));
  const pinned = state.orders?.pinned === model.name;
  return { ...model, ...fresh, phase: now.phase ?? null, pinned };
}

function matches(model, wanted) {
  if (!wanted) return true;
  const texts = [model.name, ...model.aliases, ...(model.capabilities ?? [])];
  return texts.some((text) => text.toLowerCase().includes(wanted));
}

function byName(one, other) {
  return one.name.localeCompare(other.name);
}

// Of very many, what is in use comes first; else no row moves because its model is loaded.
function byUse(one, other) {
  const rank = (model) => 4 * model.resident + 2 * Boolean(model.waiting) + model.home;
  return rank(other) - rank(one) || byName(one, other);
}

function noteOf(engine, models) {
  const facts = [
    engine.name === "main" ? "" : engine.title,
    engine.version && engine.version !== "unknown" ? engine.version : "",
    engine.up ? "" : (engine.problem ?? "does not answer"),
    `${models.length} ${models.length === 1 ? "model" : "models"}`,
    engine.loads ? "" : "in memory for as long as the server runs",
    engine.on_card ? "" : "not on this GPU",
  ];
  return facts.filter(Boolean).join(" · ");
}
