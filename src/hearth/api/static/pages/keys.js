// Who may use the gateway: callers with their limits and usage, and their keys.

import { html, Component } from "../vendor/htm-preact-3.1.1.module.js";
import { Loaded } from "../fetching.js";
import { count, day, usd, whole } from "../format.js";
import { Icon } from "../icons.js";
import { Meter, Panel } from "../parts.js";
import { Link } from "../router.js";
import { Connect } from "./connect.js";
import { NewKey, Secret } from "./keys_new.js";

const AGAIN_MS = 15_000;
const KEYS_PATH = "/llm/admin/keys";
const OWN_PATH = "/llm/key";

export class Keys extends Component {
  state = { made: null, busy: false };

  componentDidMount() {
    const { feed, state } = this.props;
    this.loaded = new Loaded(feed, () => this.setState({}));
    this.loaded.show(state.you.admin ? KEYS_PATH : OWN_PATH);
    this.timer = setInterval(() => document.hidden || this.loaded.ask(), AGAIN_MS);
  }

  componentWillUnmount() {
    clearInterval(this.timer);
    this.loaded.close();
  }

  // Carries out an edit of the file. One that has to be made by hand has a secret, too.
  async edit(path, body) {
    const { feed, state, orders, go, query } = this.props;
    this.setState({ busy: true });
    const { answer, error, refusal } = await orders.send("POST", path, body);
    const made = answer ?? { ...refusal, name: body.name };
    const own = state.you.caller === body.name || this.isFirst;
    if (answer?.key && answer.in_force && own) feed.replaceKey(answer.key);
    if (made.key) this.setState({ made });
    else orders.say(error ? { bad: true, text: byHand(error, refusal) } : { text: goneOf(answer) });
    if (made.key) go("keys", { for: query.get("for") }, { replace: true });
    this.setState({ busy: false });
    this.loaded.ask();
  }

  // No keys are configured.
  get isFirst() {
    const { answer } = this.loaded ?? {};
    return this.props.state.you.admin && answer?.keys.length === 0;
  }

  render({ state, query, go }) {
    const { answer, problem } = this.loaded ?? {};
    const { made } = this.state;
    const turn = (values) => go("keys", { for: query.get("for"), ...values }, { replace: true });
    const work = state.you.admin
      ? [this.making(turn), this.callers(() => turn({ new: "1" }))]
      : this.own();
    // All at once, so that nothing moves.
    if (!answer && !problem) {
      return html`<h1 class="hidden">Keys</h1><p class="empty" aria-busy="true">One moment.</p>`;
    }
    return html`<h1 class="hidden">Keys</h1>
      <div class="keys-columns">
        <div class="column">${work}</div>
        <div class="column"><${Connect} state=${state} keyed=${!this.isFirst} secret=${made}
          chosen=${query.get("for")} choose=${(name) => turn({ for: name })} /></div>
      </div>`;
  }

  // The form, and then the secret in its place.
  making(turn) {
    const { made, busy } = this.state;
    if (made) {
      const close = () => this.setState({ made: null });
      return html`<${Secret} key=${made.key} made=${made} close=${close} />`;
    }
    if (!this.isFirst && !this.props.query.has("new")) return null;
    return html`<${NewKey} first=${this.isFirst} busy=${busy} close=${() => turn({})}
      make=${(body) => this.edit(KEYS_PATH, body)} />`;
  }

  callers(open) {
    const { answer, problem } = this.loaded ?? {};
    const { query } = this.props;
    const tools = html`<button class="primary" onClick=${open}>
      <${Icon} name="plus" /> New key</button>`;
    const rows = answer ? [...answer.keys, ...answer.others] : [];
    return html`<${Panel} title="Callers" id="callers-title" className="callers-panel"
      note=${noteOf(answer)} tools=${this.isFirst || query.has("new") ? null : tools}>
      ${problem ? html`<p class="wrong" role="alert">${problem}</p>` : null}
      <ul class="callers">${rows.map((row) => this.row(row, answer.keys))}</ul>
    <//>`;
  }

  own() {
    const { answer, problem } = this.loaded ?? {};
    return html`<${Panel} title="Your key" id="callers-title" className="callers-panel">
      ${problem ? html`<p class="wrong" role="alert">${problem}</p>` : null}
      ${answer ? html`<ul class="callers">${this.row(answer, [])}</ul>` : null}
    <//>`;
  }

  row(row, keys) {
    const { state, now, ask } = this.props;
    const isOwn = row.name === state.you.caller;
    const tools = state.you.admin && row.sha256
      ? html`<${Tools} row=${row} ask=${ask} kept=${keptBecause(row, isOwn, keys)}
          edit=${(name, body) => this.edit(`${KEYS_PATH}/${name}`, body)} />`
      : null;
    return html`<${Caller} key=${row.name} row=${row} now=${now} isOwn=${isOwn} tools=${tools} />`;
  }
}

// Why a key is not revoked here.
function keptBecause(row, isOwn, keys) {
  if (isOwn) return "the key that you use";
  return row.admin && keys.filter((key) => key.admin).length === 1 ? "the only admin key" : "";
}

function byHand(error, refusal) {
  return refusal?.command ? `${error}. On the machine of Hearth: ${refusal.command}` : error;
}

function goneOf({ name, in_force: inForce, file }) {
  return inForce ? `The key of ${name} is revoked.` : `The key of ${name} is no longer in ${file}.`;
}

function noteOf(answer) {
  if (!answer) return null;
  const { length } = answer.keys;
  if (!length) return "no keys: programs on this machine only";
  return `${length} ${length === 1 ? "key" : "keys"}${answer.file ? ` in ${answer.file}` : ""}`;
}

function Tools({ row, ask, edit, kept }) {
  const { name } = row;
  const rotate = () => ask({
    title: `Rotate the key of ${name}?`,
    text: "It gets a new secret, which is shown once. What has the old one is refused from then on,"
      + " until you give it the new one. Rights and limits stay.",
    label: "Rotate",
    bad: true,
    run: () => edit("rotate", { name }),
  });
  const revoke = () => ask({
    title: `Revoke the key of ${name}?`,
    text: "What has it is refused from then on. Requests that wait or run go on; its log stays.",
    label: "Revoke",
    bad: true,
    run: () => edit("revoke", { name }),
  });
  return html`<button class="small" aria-label=${`Rotate the key of ${name}`}
      onClick=${rotate}>Rotate</button>
    ${kept
      ? html`<span class="muted small">${kept}</span>`
      : html`<button class="small" aria-label=${`Revoke the key of ${name}`}
          onClick=${revoke}>Revoke</button>`}`;
}

function Caller({ row, now, isOwn, tools }) {
  return html`<li class="caller-card">
    <header><h3>${row.name}</h3><${Badges} row=${row} isOwn=${isOwn} /></header>
    <dl class="pairs">
      <div><dt>Last seen</dt><dd>${seen(row, now)}</dd></div>
      <${Limits} row=${row} />
      <${Budget} budget=${row.budget} />
      ${row.usage ? html`<${Usage} title="24 hours" used=${row.usage["24h"]} />
        <${Usage} title="30 days" used=${row.usage["30d"]} />` : null}
      ${row.models?.length
        ? html`<div><dt>Models</dt><dd>${row.models.join(", ")}</dd></div>`
        : null}
    </dl>
    <footer><${Link} to="requests" values=${{ caller: row.name }}
      aria-label=${`Requests of ${row.name}`}>Requests<//>${tools}</footer>
  </li>`;
}

function Badges({ row, isOwn }) {
  const internal = row.lane === "internal";
  const badges = [
    [isOwn, "you", ""],
    [!row.sha256, "no key", ""],
    [internal, row.priority === "critical" ? "assistant" : "internal", "internal"],
    [row.admin, "admin", ""],
    [row.may_lease && !row.admin, "may take the GPU", ""],
    [row.may_set_mode && !row.admin, "may switch the mode", ""],
    [row.allow_cloud && !row.local_only, "Claude", ""],
    [row.local_only, "this machine only", ""],
    [row.paused, "paused", "warn"],
  ];
  return badges
    .filter(([is]) => is)
    .map(([, text, tone]) => html`<span key=${text} class=${`badge ${tone}`}>${text}</span>`);
}

function seen({ last_seen_wall: at, usage }, now) {
  if (at == null) return usage ? "not in the last 30 days" : "not since the start";
  const ago = now - at;
  if (ago < 60) return "just now";
  return ago < 86_400 ? `${whole(ago)} ago` : day(at, now);
}

const LIMITS = [
  ["requests_per_minute", "this minute"],
  ["requests_per_hour", "this hour"],
  ["embeddings_per_minute", "embeddings this minute"],
  ["embeddings_per_hour", "embeddings this hour"],
];

function Limits({ row }) {
  const { limits, name } = row;
  if (!limits) return html`<div><dt>Limits</dt><dd>none</dd></div>`;
  const shown = LIMITS.filter(([key]) => key.startsWith("requests") || limits[key].used > 0);
  const meters = shown.map(([key, words]) => {
    const { used, limit } = limits[key];
    const text = `${count(used)} of ${count(limit)} ${words}`;
    return html`<span key=${key} class="limit"><small>${text}</small>
      <${Meter} label=${`${name}: ${words}`} value=${used} most=${limit} text=${text} /></span>`;
  });
  const waits = limits.when_exceeded === "wait";
  return html`<div><dt>Limits</dt><dd>${meters}
    ${waits ? html`<small class="muted">over a limit they wait</small>` : null}</dd></div>`;
}

function Budget({ budget }) {
  if (!budget) return null;
  const { used_usd: used, limit_usd: limit } = budget;
  const text = limit == null ? `${usd(used)} today` : `${usd(used)} of ${usd(limit)} today`;
  const meter = html`<${Meter} label="Budget for Claude" value=${used} most=${limit}
    text=${text} />`;
  return html`<div><dt>Claude</dt><dd><span class="limit"><small>${text}</small>
    ${limit == null ? null : meter}</span></dd></div>`;
}

function Usage({ title, used }) {
  const tokens = used.prompt_tokens + used.output_tokens;
  const requests = `${count(used.requests)} ${used.requests === 1 ? "request" : "requests"}`;
  const failed = used.failed ? `, ${count(used.failed)} failed` : "";
  return html`<div><dt>${title}</dt>
    <dd>${requests}${failed}${tokens ? `, ${count(tokens)} tokens` : ""}</dd></div>`;
}
