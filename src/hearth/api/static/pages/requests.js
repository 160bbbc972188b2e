// Every request: what waits and runs, then the log, searched by what the address says. `id` shows
// one request, `view=log` the gateway's own log.

import { html, Component } from "../vendor/htm-preact-3.1.1.module.js";
import { Icon } from "../icons.js";
import { Empty, Panel } from "../parts.js";
import { Link } from "../router.js";
import { LiveLog } from "./live_log.js";
import { Request } from "./request.js";
import { Rows, download } from "./requests_rows.js";
import { RequestTable } from "./requests_table.js";
import { FILTERS, Search } from "./requests_search.js";

const TOP_PX = 300; // So far from the top of the page, new rows would push away what is read.
const NO_STORE = "Only the last requests: a log of all needs the store (storage.enabled is off).";

export class Requests extends Component {
  constructor(props) {
    super(props);
    this.rows = new Rows(props.feed, () => this.setState({}));
    this.state = { saving: "" };
    this.last = lastEnded(props.state);
    this.isFresh = false; // More has ended than is shown.
  }

  componentDidMount() {
    this.show(this.props);
  }

  componentWillReceiveProps(next) {
    this.show(next);
    const last = lastEnded(next.state);
    this.isFresh ||= last !== this.last;
    this.last = last;
    if (!this.isFresh || scrollY > TOP_PX || document.hidden) return;
    this.isFresh = !this.rows.refresh();
  }

  componentWillUnmount() {
    this.rows.close();
  }

  show({ state, query }) {
    if (state.jobs && !query.get("id") && query.get("view") !== "log") {
      const asked = new URLSearchParams(chosen(query)).toString();
      this.rows.show(asked ? `&${asked}` : "");
    }
  }

  async save(format) {
    this.setState({ saving: format });
    const asked = new URLSearchParams({ ...chosen(this.props.query), format });
    const problem = await download(this.props.feed, `/llm/log/export?${asked}`);
    this.setState({ saving: "" });
    if (problem) this.props.orders.say({ bad: true, text: problem });
  }

  fresh = () => {
    scrollTo({ top: 0 });
    this.isFresh = !this.rows.refresh();
    this.setState({});
  };

  render(props) {
    const { query, state } = props;
    if (query.get("id")) return html`<${Request} key=${query.get("id")} ...${props} />`;
    const isLog = query.get("view") === "log" && state.you.admin;
    return html`<div class="requests">
      <h1 class="hidden">Requests</h1>
      ${state.you.admin ? html`<${Tabs} isLog=${isLog} />` : null}
      ${isLog ? html`<${LiveLog} ...${props} />` : this.found()}
    </div>`;
  }

  found() {
    const { state, now, query, go, orders, ask } = this.props;
    const filters = chosen(query);
    const choose = (changes) => go("requests", { ...filters, ...changes });
    const { rows, problem, next, loading } = this.rows;
    const shown = state.jobs ? rows : recentOf(state, filters);
    return html`<${Search} filters=${filters} state=${state} rows=${rows ?? []} choose=${choose} />
      <${Panel} title="Requests" id="requests-title" tools=${this.tools()}
        note=${state.jobs ? "" : NO_STORE}>
        ${problem ? html`<p class="wrong" role="alert">${problem}</p>` : null}
        <div aria-busy=${String(loading)} class="requests-box">
          <${RequestTable} live=${liveOf(state, filters)} rows=${shown ?? []} state=${state}
            now=${now} filters=${filters} orders=${orders} ask=${ask} />
          ${shown ? null : html`<${Empty}>${problem ? "" : "Reading the log."}<//>`}
          ${shown?.length === 0 ? html`<${Empty}>${nothing(filters)}<//>` : null}
        </div>
        ${next
          ? html`<button class="quiet" disabled=${loading} onClick=${() => this.rows.more()}>
              ${loading ? "Reading" : "More"}</button>`
          : null}
      <//>
      ${this.isFresh && scrollY > TOP_PX
        ? html`<button class="primary requests-fresh" onClick=${this.fresh}>
            <${Icon} name="arrow-up" /> New requests</button>`
        : null}`;
  }

  tools() {
    const { saving } = this.state;
    if (!this.props.state.jobs) return null;
    return [["csv", "CSV"], ["jsonl", "JSON Lines"]].map(([format, title]) => html`<button
      class="small" key=${format} disabled=${Boolean(saving)} onClick=${() => this.save(format)}
      title="All requests that are found, as a file"><${Icon} name="download" /> ${" "}
      ${saving === format ? "Saving" : title}</button>`);
  }
}

function Tabs({ isLog }) {
  const tab = (text, values, current) => html`<${Link} to="requests" values=${values}
    aria-current=${current ? "page" : undefined}>${text}<//>`;
  return html`<nav class="tabs" aria-label="Requests or the gateway's log">
    ${tab("Requests", {}, !isLog)}${tab("Live log", { view: "log" }, isLog)}</nav>`;
}

// What of the address this page knows.
function chosen(query) {
  const known = FILTERS.map((name) => [name, query.get(name)]);
  return Object.fromEntries(known.filter(([, value]) => value));
}

function nothing(filters) {
  return Object.keys(filters).length ? "No finished request matches." : "No request has finished.";
}

function lastEnded(state) {
  return Math.max(0, ...Object.keys(state.recent).map(Number));
}

const LIVE = ["caller", "user", "model", "lane", "task_type"];

// What runs and what waits; none where what is searched for can only have ended.
function liveOf(state, filters) {
  if (["outcome", "until", "engine"].some((name) => filters[name])) return [];
  const items = [...Object.values(state.running), ...Object.values(state.waiting.rows)];
  const own = state.you.admin ? items : items.filter((item) => item.caller === state.you.caller);
  return own.filter((item) => matches(item, filters, LIVE));
}

// Without a store, what the gateway remembers.
function recentOf(state, filters) {
  const items = Object.values(state.recent).sort((a, b) => b.ended - a.ended);
  const rows = items.map((item) => ({
    ...item,
    ended_wall_s: item.ended,
    interrupt_count: item.interrupts ?? 0,
  }));
  return rows.filter((row) => matches(row, filters, [...LIVE, "engine", "outcome"]));
}

function matches(item, filters, names) {
  return names.every((name) => !filters[name] || item[name] === filters[name]);
}
