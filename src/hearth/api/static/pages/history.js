// The last day, week or month, from the store: requests, waits, swaps and tokens, over time, by caller and by model.

import { html, Component } from "../vendor/htm-preact-3.1.1.module.js";
import { BASE } from "../base.js";
import { errorText } from "../feed.js";
import { count, day, duration, percent, short } from "../format.js";
import { Empty, Panel } from "../parts.js";

const WINDOWS = [["24h", "24 hours"], ["7d", "7 days"], ["30d", "30 days"]];
const CHARTS = [
  ["Requests", "requests", count, "failed"],
  ["Wait, 95th percentile", "wait_p95_s", duration, "wait_p50_s"],
  ["Swap share", "swap_share", (share) => (share == null ? "–" : percent(share * 100))],
  ["Answer tokens", "output_tokens", count],
];

export class History extends Component {
  state = { window: "24h", found: null, problem: "" };

  componentDidMount() {
    this.load("24h");
  }

  componentWillUnmount() {
    this.abort?.abort();
  }

  async load(window) {
    this.abort?.abort();
    const abort = (this.abort = new AbortController());
    this.setState({ window });
    if (!this.props.feed.state.jobs) return this.setState({ problem: "The history needs the store: storage.enabled is off." });
    try {
      const response = await fetch(`${BASE}/llm/history?window=${window}`, { headers: this.props.feed.headers, signal: abort.signal, cache: "no-store" });
      if (abort.signal.aborted) return;
      this.setState(response.ok ? { found: await response.json(), problem: "" } : { found: null, problem: await errorText(response) });
    } catch {
      if (!abort.signal.aborted) this.setState({ found: null, problem: "Hearth does not answer." });
    }
  }

  render({ now }) {
    const { window, found, problem } = this.state;
    return html`<h1 class="hidden">History</h1><${Panel} title="History" id="history-title" className="history">
      <span class="segmented" role="group" aria-label="Time shown">${WINDOWS.map(([value, text]) => html`<button key=${value} aria-pressed=${String(window === value)}
        onClick=${() => this.load(value)}>${text}</button>`)}</span>
      <div class="past">${problem ? html`<${Empty}>${problem}<//>` : found ? html`<${Found} found=${found} now=${now} />` : html`<${Empty}>Reading the log.<//>`}</div><//>`;
  }
}

function Found({ found, now }) {
  const { total } = found;
  if (!total.requests) return html`<${Empty}>No request has finished in this time.<//>`;
  return html`<p class="sums"><b>${count(total.requests)}</b> requests${total.failed ? html`, <b>${count(total.failed)}</b> failed` : null} · wait${" "}
      <b>${duration(total.wait_p50_s)}</b> median, <b>${duration(total.wait_p95_s)}</b> for 95 %${total.bound_kept_share == null ? null : html`, <b>${percent(total.bound_kept_share * 100)}</b> within their bound`} · <b>${count(total.swaps)}</b> swaps, <b>${percent((total.swap_share ?? 0) * 100)}</b> of the GPU's${" "}
      time · <b>${count(total.prompt_tokens)}</b> prompt and <b>${count(total.output_tokens)}</b> answer tokens</p>
    <div class="charts">${CHARTS.map(([title, name, text, part]) => html`<${Bars} key=${name} title=${title} name=${name} text=${text} part=${part} found=${found} now=${now} />`)}</div>
    <div class="tables"><${Table} title="By caller" rows=${found.callers} name=${(row) => row.caller} /><${Table} title="By model" rows=${found.models} name=${(row) => short(row.model)} swaps /></div>`;
}

// `part` is a share of the same bar: failed of all requests, the median of the 95th percentile.
function Bars({ title, name, text, part, found, now }) {
  const most = Math.max(...found.buckets.map((bucket) => bucket[name] ?? 0));
  const height = (value) => `${most ? Math.max(value ? 2 : 0, (100 * (value ?? 0)) / most) : 0}%`;
  const told = (bucket) => `${day(bucket.start_wall_s, now)}: ${text(bucket[name])}${part ? `, ${part === "failed" ? `${count(bucket.failed)} failed` : `median ${duration(bucket[part])}`}` : ""}`;
  return html`<figure><figcaption>${title}<span class="muted"> up to ${text(most)}</span></figcaption>
    <div class="bars" role="img" aria-label=${`${title}: ${found.buckets.map(told).join("; ")}`}>${found.buckets.map((bucket) => html`<span key=${bucket.start_wall_s} title=${told(bucket)}>
      <i style=${{ height: height(bucket[name]) }}></i>${part ? html`<i class=${part === "failed" ? "failed" : "median"} style=${{ height: height(bucket[part]) }}></i>` : null}</span>`)}</div>
    <p class="ends muted"><span>${day(found.buckets[0].start_wall_s, now)}</span><span>now</span></p></figure>`;
}

function Table({ title, rows, name, swaps }) {
  return html`<section class="scroll"><h3>${title}</h3><table><thead><tr><th scope="col">${title.slice(3, 4).toUpperCase()}${title.slice(4)}</th><th scope="col" class="number">Requests</th><th scope="col" class="number">Failed</th>
      <th scope="col" class="number">Wait p50</th><th scope="col" class="number">p95</th><th scope="col" class="number">Tokens</th>${swaps ? html`<th scope="col" class="number">Swaps</th>` : null}</tr></thead>
    <tbody>${rows.map((row) => html`<tr key=${name(row)}><td>${name(row)}</td><td class="number">${count(row.requests)}</td><td class="number">${count(row.failed)}</td>
      <td class="number">${duration(row.wait_p50_s)}</td><td class="number">${duration(row.wait_p95_s)}</td><td class="number">${count(row.prompt_tokens + row.output_tokens)}</td>
      ${swaps ? html`<td class="number">${count(row.swaps)}</td>` : null}</tr>`)}</tbody></table></section>`;
}
