// One request: where it is, or what became of it: what it waited for, its phases, interruptions,
// tokens, speed and cost.

import { html, Component } from "../vendor/htm-preact-3.1.1.module.js";
import { Loaded } from "../fetching.js";
import {
  count, day, duration, rate, short, startsIn, startsWithin, tokensPerSecond, usd,
  waitedFor, waitsFor, waitsOf,
} from "../format.js";
import { Icon } from "../icons.js";
import { PHASES, Phases, phasesOf } from "../phases.js";
import { CancelButton, Copied, Empty, Panel } from "../parts.js";
import { Link } from "../router.js";
import { phaseOf } from "../running.js";
import { keyOf } from "./requests_rows.js";
import { TONES } from "./requests_table.js";

const HOW = {
  continued: "It went on where it stopped.",
  replayed: "It was run again from the start, compared, and went on where it stopped.",
};

export class Request extends Component {
  constructor(props) {
    super(props);
    this.loaded = new Loaded(props.feed, () => this.setState({}));
  }

  componentDidMount() {
    this.look(this.props);
  }

  // The log is asked again when the request is no longer under way.
  componentWillReceiveProps(next) {
    const before = liveOf(this.props).length;
    if (liveOf(next).length < before) this.look(next);
  }

  componentWillUnmount() {
    this.loaded.close();
  }

  look({ state, query }) {
    const asked = new URLSearchParams({ request_id: query.get("id"), limit: 100 });
    if (state.jobs) this.loaded.ask(`/llm/log?${asked}`);
  }

  render(props) {
    const { query, state } = props;
    const { answer, problem } = this.loaded;
    const live = liveOf(props);
    const rows = answer ? answer.items : endedOf(props);
    const { id, ...filters } = Object.fromEntries(query);
    const isKnown = live.length + rows.length > 0;
    const isReading = state.jobs && !answer && !problem;
    return html`<div class="request">
      <p><${Link} to="requests" values=${filters}><${Icon} name="chevron-left" />
        All requests<//></p>
      <h1 class="request-title">Request ${" "}<${Copied} text=${id} label="the id" /></h1>
      ${problem ? html`<p class="wrong" role="alert">${problem}</p>` : null}
      ${live.map((item) => html`<${Live} key=${item.sequence} item=${item} ...${props} />`)}
      ${rows.map((row) => html`<${Ended} key=${keyOf(row)} row=${row} ...${props} />`)}
      ${isKnown || problem ? null : html`<${Empty}>${isReading ? "Reading the log." : UNKNOWN}<//>`}
    </div>`;
  }
}

const UNKNOWN = "No request has this id, or it is no longer kept. Callers see their own requests.";

function liveOf({ state, query }) {
  const items = [...Object.values(state.running), ...Object.values(state.waiting.rows)];
  return items.filter((item) => item.request_id === query.get("id"));
}

// Without a store, what the gateway remembers.
function endedOf({ state, query }) {
  const items = Object.values(state.recent);
  const found = items.filter((item) => item.request_id === query.get("id"));
  return found.map((item) => ({
    ...item,
    ended_wall_s: item.ended,
    accepted_wall_s: item.ended - item.total_s,
    interrupt_count: item.interrupts ?? 0,
  }));
}

const times = (number) => (number === 1 ? "once" : `${number} times`);

function Live({ item, state, now, orders, ask }) {
  const runs = item.dispatched != null;
  const rows = runs ? runningRows(item, now) : waitingRows(item, state, now);
  const tools = html`<${CancelButton} item=${item} state=${state} orders=${orders} ask=${ask} />`;
  return html`<${Panel} title=${runs ? "Running" : "Waiting"} id=${`live-${item.sequence}`}
    tools=${tools} note=${runs ? phaseOf(item) : ""}>
    <${Pairs} rows=${[...whose(item), ...rows]} />
  <//>`;
}

function runningRows(item, now) {
  return [
    ["Waited", duration(item.dispatched - item.arrived)],
    ["Running for", duration(now - item.dispatched)],
    ["Expected to end", startsIn(item.expected_end, now)],
    ["First byte", item.first_byte ? `after ${duration(item.first_byte - item.dispatched)}` : ""],
    ["Attempt", item.attempt > 1 ? String(item.attempt) : ""],
    ["Interrupted", item.interrupts ? times(item.interrupts) : ""],
    ["Prompt", item.prompt_tokens ? `about ${count(item.prompt_tokens)} tokens` : ""],
    ["Prompt begins", item.prompt_preview],
  ];
}

function waitingRows(item, state, now) {
  const before = Math.max(0, state.waiting.order.indexOf(item.sequence));
  return [
    ["Waits for", item.why ? waitsFor(item.why, before, now) : ""],
    ["Waited so far", duration(now - item.arrived)],
    ["Expected to start", startsIn(item.start, now)],
    ["90 % start", item.bound == null ? "" : startsWithin(item.bound, now)],
    ["Interrupted", item.interrupts ? times(item.interrupts) : ""],
    ["Prompt", item.prompt_tokens ? `about ${count(item.prompt_tokens)} tokens` : ""],
    ["Prompt begins", item.prompt_preview],
  ];
}

function Ended({ row, state, now }) {
  const { outcome, reason } = row;
  const why = reason && reason !== outcome ? `: ${reason.replaceAll("_", " ")}` : "";
  const title = html`<span class=${`dot ${TONES[outcome] ?? ""}`}></span> ${outcome}${why}`;
  const note = `${day(row.ended_wall_s, now)}, after ${duration(row.total_s)}`;
  return html`<${Panel} title=${title} id=${`ended-${keyOf(row)}`} note=${note}>
    <${PhaseBar} row=${row} />
    <div class="request-columns">
      <${Pairs} rows=${whose(row)} />
      <div><h3>Waits</h3><${Pairs} rows=${waitRows(row)} />
        ${row.interrupt_count ? html`<p>${interruptions(row)}</p>` : null}</div>
      <div><h3>Answer</h3><${Pairs} rows=${answerRows(row, now)} /></div>
    </div>
    ${state.you.admin
      ? html`<p><${Link} to="requests" values=${{ view: "log", request_id: row.request_id }}>
          Its lines in the gateway's log<//></p>`
      : null}
  <//>`;
}

function PhaseBar({ row }) {
  const phases = phasesOf(row);
  const shown = PHASES.filter(([name]) => phases[name] > 0);
  return html`<div class="phase-bar"><${Phases} item=${row} longest=${row.total_s || 1} />
    <ul class="phase-list">${shown.map(([name, text]) => html`<li key=${name}>
      <i class=${`phase ${name}`}></i> ${text} <b>${duration(phases[name])}</b></li>`)}</ul></div>`;
}

function waitRows(row) {
  const rows = waitsOf(row).map(([kind, seconds]) => [duration(seconds), waitedFor(kind)]);
  if (!rows.length) {
    const known = row.queue_s < 0.05 ? "not at all" : `${duration(row.queue_s)}, why is not known`;
    rows.push(["Waited", known]);
  }
  if (row.wait_bound_s != null && row.wait_bound_s > 0) {
    const kept = { true: ", which held", false: ", which did not hold" }[row.bound_kept] ?? "";
    rows.push(["Estimate", `start within ${duration(row.wait_bound_s)}${kept}`]);
  }
  return rows;
}

function interruptions({ interrupt_count: number, resumed, outcome }) {
  const how = HOW[resumed] ?? (outcome === "completed" ? "It was run again." : "");
  return `Interrupted ${times(number)} by more urgent requests. ${how}`;
}

function answerRows(row, now) {
  return [
    ["Prompt", row.prompt_tokens == null ? "" : `${count(row.prompt_tokens)} tokens`],
    ["Answer", row.output_tokens == null ? "" : `${count(row.output_tokens)} tokens`],
    ["Speed", rate(tokensPerSecond(row))],
    ["First byte", row.first_byte_s == null ? "" : `after ${duration(row.first_byte_s)}`],
    ["Cost", row.cost_usd ? usd(row.cost_usd) : ""],
    ["Attempts", row.attempts > 1 ? String(row.attempts) : ""],
    ["HTTP status", row.status ? String(row.status) : ""],
    ["Accepted", row.accepted_wall_s ? day(row.accepted_wall_s, now, true) : ""],
  ];
}

function whose(item) {
  const link = (name, text) => item[name]
    ? html`<${Link} to="requests" values=${{ [name]: item[name] }}>${text ?? item[name]}<//>`
    : null;
  const copied = (value, label) => value && html`<${Copied} text=${value} label=${label} />`;
  return [
    ["Caller", link("caller")],
    ["User", link("user")],
    ["Model", link("model", short(item.model))],
    ["Alias", item.alias],
    ["Engine", link("engine")],
    ["Lane", item.band && item.band !== item.lane ? `${item.lane}, ${item.band}` : item.lane],
    ["Task type", link("task_type")],
    ["Background", item.background],
    ["Number", String(item.sequence)],
    ["Chain", copied(item.chain_id, "the chain's id")],
    ["Conversation", copied(item.conversation, "the conversation's digest")],
  ];
}

function Pairs({ rows }) {
  const known = rows.filter(([, value]) => value != null && value !== "");
  return html`<dl class="pairs">${known.map(([name, value]) => html`<div key=${name}>
    <dt>${name}</dt><dd>${value}</dd></div>`)}</dl>`;
}
