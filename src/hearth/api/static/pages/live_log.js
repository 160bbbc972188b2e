// The gateway's own log as it is written, by level, event, caller and request; the address has the
// choice. For admins.

import { html, Component } from "../vendor/htm-preact-3.1.1.module.js";
import { BASE } from "../base.js";
import { errorText } from "../feed.js";
import { clock } from "../format.js";
import { Empty, Panel } from "../parts.js";

const KEPT = 1000;
const RETRY_MS = 2000;
const NEAR_PX = 40;
const LEVELS = [["", "all"], ["info", "info"], ["warning", "warning"], ["error", "error"]];
const HEAD = ["id", "ts", "level", "event"];
const EMPTY_VALUES = [null, "", false];

// Reads the stream with fetch, because EventSource cannot send a key, and again where it ends.
class LogStream {
  constructor(feed, changed) {
    this._feed = feed;
    this._changed = changed;
    this._abort = null;
    this._asked = null;
    this._timer = 0;
    this.lines = [];
    this.problem = "";
  }

  show(asked) {
    if (asked === this._asked) return;
    this._asked = asked;
    this.lines = [];
    this._read();
  }

  async _read() {
    clearTimeout(this._timer);
    this._abort?.abort();
    const abort = (this._abort = new AbortController());
    try {
      const after = new URLSearchParams({ after: this.lines.at(-1)?.id ?? "" });
      const options = { headers: this._feed.headers, signal: abort.signal, cache: "no-store" };
      const path = `${BASE}/llm/admin/logs/stream?${this._asked}&${after}`;
      const response = await fetch(path, options);
      if (response.ok) await this._take(response.body);
      this._tell(response.ok ? "" : await errorText(response));
    } catch {
      if (!abort.signal.aborted) this._tell("Hearth does not answer; the page keeps trying.");
    }
    if (!abort.signal.aborted) this._timer = setTimeout(() => this._read(), RETRY_MS);
  }

  async _take(body) {
    const reader = body.pipeThrough(new TextDecoderStream()).getReader();
    let buffered = "";
    this._tell("");
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      buffered += value;
      const frames = buffered.split("\n\n");
      buffered = frames.pop();
      const data = frames.filter((frame) => frame.startsWith("data: "));
      const lines = data.map((frame) => JSON.parse(frame.slice(6)));
      if (lines.length) this._add(lines);
    }
  }

  _add(lines) {
    this.lines = [...this.lines, ...lines].slice(-KEPT);
    this._changed();
  }

  _tell(problem) {
    this.problem = problem;
    this._changed();
  }

  close() {
    clearTimeout(this._timer);
    this._abort?.abort();
  }
}

export class LiveLog extends Component {
  constructor(props) {
    super(props);
    this.stream = new LogStream(props.feed, () => this.setState({}));
    this.state = { held: null };
    this.follows = true;
  }

  componentDidMount() {
    this.stream.show(this.asked(this.props));
    this.follow();
  }

  componentWillReceiveProps(next) {
    this.stream.show(this.asked(next));
  }

  componentDidUpdate() {
    this.follow();
  }

  componentWillUnmount() {
    this.stream.close();
  }

  // The last line stays in sight, unless the reader has gone up.
  follow() {
    if (this.follows && this.box) this.box.scrollTop = this.box.scrollHeight;
  }

  scrolled = ({ target }) => {
    this.follows = target.scrollHeight - target.scrollTop - target.clientHeight < NEAR_PX;
  };

  chosen({ query }) {
    const names = ["level", "event", "caller", "request_id"];
    return Object.fromEntries(names.map((name) => [name, query.get(name) ?? ""]));
  }

  asked(props) {
    const known = Object.entries(this.chosen(props)).filter(([, value]) => value);
    return new URLSearchParams(known).toString();
  }

  hold = () => this.setState({ held: this.state.held ? null : this.stream.lines });

  render(props, { held }) {
    const { lines, problem } = this.stream;
    const shown = held ?? lines;
    const chosen = this.chosen(props);
    const choose = (changes) => props.go("requests", { view: "log", ...chosen, ...changes });
    const tools = html`<button class="small" aria-pressed=${String(Boolean(held))}
      onClick=${this.hold}>${held ? "Go on" : "Hold"}</button>`;
    return html`<${Choice} chosen=${chosen} choose=${choose} lines=${lines} state=${props.state} />
      <${Panel} title="Live log" id="log-title" tools=${tools} className="log-panel"
        note="the gateway's own lines, without prompts and keys">
        ${problem ? html`<p class="wrong" role="alert">${problem}</p>` : null}
        <div class="log-lines" role="log" aria-live="off" aria-label="Lines of the log" tabindex="0"
          ref=${(node) => (this.box = node)} onScroll=${this.scrolled}>
          ${shown.map((line) => html`<${Line} key=${line.id} line=${line} />`)}
          ${shown.length ? null : html`<${Empty}>No line matches yet.<//>`}
        </div>
      <//>`;
  }
}

function Choice({ chosen, choose, lines, state }) {
  const events = [...new Set(lines.map((line) => line.event))].sort();
  const text = (name, title, known) => html`<span class="field">
    <label for=${`log-${name}`}>${title}</label>
    <input id=${`log-${name}`} type="search" autocomplete="off" spellcheck=${false}
      placeholder="any" value=${chosen[name]} list=${`log-${name}-known`}
      onChange=${(event) => choose({ [name]: event.target.value.trim() })} />
    <datalist id=${`log-${name}-known`}>${known.map((each) => html`<option key=${each}
      value=${each}></option>`)}</datalist></span>`;
  return html`<form class="requests-search" role="search" aria-label="Lines of the log"
    onSubmit=${(event) => event.preventDefault()}>
    <span class="field"><label for="log-level">Level and above</label>
      <select id="log-level" onChange=${(event) => choose({ level: event.target.value })}>
        ${LEVELS.map(([value, name]) => html`<option key=${value} value=${value}
          selected=${value === chosen.level}>${name}</option>`)}</select></span>
    ${text("event", "Event", events)}
    ${text("caller", "Caller", Object.keys(state.callers))}
    ${text("request_id", "Request id", [])}
  </form>`;
}

function Line({ line }) {
  const fields = Object.entries(line).filter(([name, value]) =>
    !HEAD.includes(name) && !EMPTY_VALUES.includes(value) && String(value) !== "");
  return html`<p class=${`log-line ${line.level}`}>
    <time datetime=${line.ts} title=${line.ts}>${clock(Date.parse(line.ts) / 1000)}</time>
    <span class=${`log-level ${line.level}`}>${line.level}</span>
    <b>${line.event.replaceAll("_", " ")}</b>
    ${fields.map(([name, value]) => html`<span key=${name}><i>${name}</i> ${shown(value)}</span>`)}
  </p>`;
}

function shown(value) {
  if (Array.isArray(value)) return value.join(", ");
  return typeof value === "number" && !Number.isInteger(value) ? value.toFixed(3) : String(value);
}
