// Up to ninety days from the store: requests, waits, swaps, tokens, speed and energy, over time and
// by caller, model and engine. The address has the window, the filters and the group.

import { html, Component } from "../vendor/htm-preact-3.1.1.module.js";
import { Loaded } from "../fetching.js";
import { compact, count, duration, percent, rate, short } from "../format.js";
import { Empty, Panel } from "../parts.js";
import { Link } from "../router.js";
import { Series } from "../series.js";
import { chartsOf, energyText } from "./history_charts.js";

const WINDOWS = [["24h", "24 hours"], ["7d", "7 days"], ["30d", "30 days"], ["90d", "90 days"]];
const GROUPS = [
  ["", "All"],
  ["caller", "By caller"],
  ["model", "By model"],
  ["engine", "By engine"],
];
const FILTERS = ["caller", "model", "engine"];
const DAYS = { "24h": 1, "7d": 7, "30d": 30, "90d": 90 };
const REFRESH_MS = 60_000;
const NO_STORE = "The history needs the store: storage.enabled is off.";

export class History extends Component {
  state = { zoom: null };

  constructor(props) {
    super(props);
    this.loaded = new Loaded(props.feed, () => this.answered());
  }

  answered() {
    this.shown = this.address(this.props);
    this.setState({});
  }

  componentDidMount() {
    this.refreshing = setInterval(() => this.refresh(), REFRESH_MS);
    this.show(this.props);
  }

  refresh() {
    if (!document.hidden && this.props.state.jobs) this.loaded.ask();
  }

  show(props) {
    if (props.state.jobs) this.loaded.show(this.address(props));
  }

  componentWillReceiveProps(next) {
    const address = this.address(next);
    if (address !== this.address(this.props)) this.setState({ zoom: null });
    this.show(next);
  }

  componentWillUnmount() {
    clearInterval(this.refreshing);
    this.loaded.close();
  }

  // What of the address this page knows.
  chosen({ query }) {
    const group = query.get("group");
    return {
      window: DAYS[query.get("window")] ? query.get("window") : "24h",
      group: GROUPS.some(([name]) => name === group) ? group : "",
      ...Object.fromEntries(FILTERS.map((name) => [name, query.get(name) ?? ""])),
    };
  }

  address(props) {
    const asked = Object.entries(this.chosen(props)).filter(([, value]) => value);
    return `/llm/history?${new URLSearchParams(asked)}`;
  }

  choose(changes) {
    const { window, ...others } = { ...this.chosen(this.props), ...changes };
    this.props.go("history", { window: window === "24h" ? "" : window, ...others });
  }

  zoomed = (zoom) => this.setState({ zoom });

  // Made once for each answer: charts are drawn anew for new arrays only.
  charts(found) {
    if (this.drawn?.found !== found) this.drawn = { found, charts: chartsOf(found) };
    return this.drawn.charts;
  }

  render(props, { zoom }) {
    const chosen = this.chosen(props);
    const { answer: found } = this.loaded;
    const { problem } = this.loaded;
    const hasStore = Boolean(props.state.jobs);
    const busy = hasStore && !problem && this.shown !== this.address(props);
    return html`<div class="history" aria-busy=${String(busy)}>
      <h1 class="hidden">History</h1>
      <${Choice} chosen=${chosen} found=${found} choose=${(changes) => this.choose(changes)} />
      ${problem ? html`<p class="wrong" role="alert">${problem}</p>` : null}
      ${hasStore ? null : html`<${Empty}>${NO_STORE}<//>`}
      ${found && hasStore
        ? html`<${Sums} found=${found} />
            <${Told} found=${found} zoom=${zoom} zoomed=${this.zoomed} />
            <div class="series-grid">${this.charts(found).map((chart) => html`
              <section class="panel" key=${chart.title}>
                <${Series} ...${chart} zoom=${zoom} zoomed=${this.zoomed} sync="history" />
              </section>`)}</div>
            <div class="history-tables">${FILTERS.map((name) => html`<${Table} key=${name}
              name=${name} rows=${found[`${name}s`]} window=${chosen.window} />`)}</div>`
        : null}
      ${found || problem || !hasStore ? null : html`<${Empty}>Reading the log.<//>`}
    </div>`;
  }
}

function Choice({ chosen, found, choose }) {
  const segmented = (label, key, values) => html`<span class="segmented" role="group"
    aria-label=${label}>${values.map(([value, text]) => html`<button key=${value}
      aria-pressed=${String(chosen[key] === value)}
      onClick=${() => choose({ [key]: value })}>${text}</button>`)}</span>`;
  return html`<div class="history-choice">
    ${segmented("Time shown", "window", WINDOWS)}
    ${segmented("Told apart", "group", GROUPS)}
    ${FILTERS.map((name) => html`<${Filter} key=${name} name=${name} value=${chosen[name]}
      rows=${found?.[`${name}s`] ?? []} choose=${choose} />`)}
  </div>`;
}

function Filter({ name, value, rows, choose }) {
  const names = new Set(rows.map((row) => row[name]).filter(Boolean));
  if (value) names.add(value);
  const id = `history-${name}`;
  return html`<span class="history-filter"><label for=${id}>${title(name)}</label>
    <select id=${id} onChange=${(event) => choose({ [name]: event.target.value })}>
      <option value="">all</option>
      ${[...names].sort().map((each) => html`<option key=${each} value=${each}
        selected=${each === value}>${each}</option>`)}
    </select></span>`;
}

function Sums({ found }) {
  const { total } = found;
  const failed = total.failed ? `${count(total.failed)} failed` : "none failed";
  const sums = [
    ["Requests", count(total.requests), failed],
    ["Wait, median", duration(total.wait_p50_s), `95 % within ${duration(total.wait_p95_s)}`],
    ["Swaps", count(total.swaps), shareText(total.swap_share)],
    ["Answer tokens", compact(total.output_tokens), `${compact(total.prompt_tokens)} in prompts`],
    ["Speed", rate(total.tokens_per_s) ?? "–", "while an answer is written"],
  ];
  if (total.bound_kept_share != null) {
    const kept = percent(total.bound_kept_share * 100);
    sums.push(["Wait estimates", kept, "started within their bound"]);
  }
  if (total.energy_wh != null) {
    const measured = `measured for ${duration(total.energy_measured_s)}`;
    sums.push(["Energy", energyText(total.energy_wh), measured]);
  }
  return html`<dl class="tiles history-sums">${sums.map(([name, value, detail]) => html`
    <div class="tile" key=${name}><dt>${name}</dt><dd><b>${value}</b></dd>
      <dd class="detail">${detail}</dd></div>`)}</dl>`;
}

function shareText(share) {
  return share == null ? "" : `${percent(share * 100)} of the GPU's time`;
}

// What the charts cannot say themselves.
function Told({ found, zoom, zoomed }) {
  const told = [];
  if (DAYS[found.window] > found.kept_days) {
    told.push(`Requests are kept for ${found.kept_days} days (storage.retention_days).`);
  }
  if (found.buckets.some((bucket) => bucket.requests == null)) {
    told.push("Hatched: nothing is known, since Hearth did not run or nothing was measured.");
  }
  told.push("Drag over a chart to zoom.");
  return html`<p class="muted history-told">${told.join(" ")}${" "}
    ${zoom
      ? html`<button class="small" onClick=${() => zoomed(null)}>Show all</button>`
      : null}</p>`;
}

const COLUMNS = [
  ["Requests", (row) => count(row.requests)],
  ["Failed", (row) => count(row.failed)],
  ["Wait p50", (row) => duration(row.wait_p50_s)],
  ["Wait p95", (row) => duration(row.wait_p95_s)],
  ["Tokens", (row) => compact(row.prompt_tokens + row.output_tokens)],
  ["Tokens/s", (row) => (row.tokens_per_s == null ? "–" : row.tokens_per_s.toFixed(1))],
];
const SWAP_COLUMNS = [
  ["Swaps", (row) => count(row.swaps)],
  ["Swap share", (row) => (row.swap_share == null ? "–" : percent(row.swap_share * 100))],
];

function Table({ name, rows, window }) {
  const columns = name === "caller" ? COLUMNS : [...COLUMNS, ...SWAP_COLUMNS];
  return html`<${Panel} title=${`By ${name}`} id=${`by-${name}`}>
    ${rows.length
      ? html`<div class="scroll" tabindex="0"><table>
          <thead><tr><th scope="col">${title(name)}</th>${columns.map(([heading]) => html`
            <th scope="col" class="number" key=${heading}>${heading}</th>`)}</tr></thead>
          <tbody>${rows.map((row) => html`<tr key=${row[name]}>
            <th scope="row"><${Named} name=${name} value=${row[name]} window=${window} /></th>
            ${columns.map(([heading, text]) => html`<td class="number"
              key=${heading}>${text(row)}</td>`)}</tr>`)}</tbody></table></div>`
      : html`<${Empty}>No request has finished in this time.<//>`}
  <//>`;
}

function Named({ name, value, window }) {
  const unnamed = name === "engine" ? "not known" : "none";
  if (value == null) return html`<span class="muted">${unnamed}</span>`;
  const text = name === "model" ? short(value) : value;
  return html`<${Link} to="requests" values=${{ [name]: value, since: window }}>${text}<//>`;
}

function title(name) {
  return name[0].toUpperCase() + name.slice(1);
}
