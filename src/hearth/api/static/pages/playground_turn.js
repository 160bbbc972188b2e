// One turn of the conversation; of an answer also where its request stands, or what it took.

import { html, Component } from "../vendor/htm-preact-3.1.1.module.js";
import { duration, short } from "../format.js";
import { Icon } from "../icons.js";
import { Link } from "../router.js";
import { standingOf, tookOf } from "./playground_standing.js";

const COPIED_MS = 1500;
const ADVICE = {
  401: "Sign in with a key that is in force.",
  403: "Ask the owner for a key that may use this model.",
  404: "Choose another model, or pull this one:",
  413: "Send fewer or smaller images, or clear the conversation.",
  429: "This key has used up its limit for now.",
  503: "Try again in a moment, or see what is going on:",
  504: "The model did not answer in time. Try again, or look at the log of its server.",
};
const PLACES = { 404: ["models", "Models"], 503: ["now", "Now"] };
const SPOKEN = {
  sent: "Sent.",
  waiting: "Waiting in the queue.",
  loading: "The model is being loaded.",
  reading: "The model reads the prompt.",
  writing: "The model answers.",
  interrupted: "Interrupted. The answer goes on by itself.",
};

export function Turn({ turn, last, pending, edit, again, state, now }) {
  const mine = turn.role === "user";
  return html`<li class=${`turn ${mine ? "mine" : "theirs"}`}>
    <h2 class="who">${mine ? "You" : short(turn.answeredBy ?? turn.model)}${turn.madeUp
      ? html` <span class="badge warn">made up by the emulator</span>`
      : null}</h2>
    ${mine ? null : html`<${Standing} turn=${turn} pending=${pending} state=${state} now=${now} />`}
    ${mine ? html`<${Shown} turn=${turn} />` : html`<${Thoughts} turn=${turn} />`}
    ${turn.text ? html`<div class="text">${turn.text}</div>` : null}
    ${turn.problem ? html`<${Problem} problem=${turn.problem} />` : null}
    <div class="turn-tools">
      ${turn.text && !pending ? html`<${Copy} text=${turn.text} />` : null}
      ${last && mine
        ? html`<button class="icon" title="Edit" aria-label="Edit the last message"
            onClick=${edit}><${Icon} name="pencil-outline" /></button>`
        : null}
      ${last && !mine && !pending
        ? html`<button class="icon" title="Answer once more" aria-label="Answer once more"
            onClick=${again}><${Icon} name="refresh" /></button>`
        : null}
    </div>
  </li>`;
}

function Shown({ turn: { images, lost } }) {
  if (lost && !images) {
    const what = lost === 1 ? "An image was" : `${lost} images were`;
    return html`<p class="muted small">${what} here; a reload forgets them.</p>`;
  }
  if (!images?.length) return null;
  return html`<ul class="pictures">${images.map((image, at) => html`<li key=${at}>
    <img src=${image} alt=${`Image ${at + 1}`} /></li>`)}</ul>`;
}

function Thoughts({ turn }) {
  if (!turn.thinking) return null;
  return html`<details class="thoughts">
    <summary>${turn.text || turn.ended ? "Thoughts" : "Thinking …"}</summary>
    <div class="text">${turn.thinking}</div></details>`;
}

function Problem({ problem: { status, text, retry } }) {
  const [place, title] = PLACES[status] ?? [];
  const link = place ? html` <${Link} to=${place}>${title}<//>.` : null;
  const wait = retry ? ` It can be tried again in ${duration(retry)}.` : "";
  return html`<div class="problem" role="alert">
    <p><${Icon} name="alert-circle" /> ${text}</p>
    ${ADVICE[status] || wait ? html`<p>${ADVICE[status]}${link}${wait}</p>` : null}</div>`;
}

class Copy extends Component {
  copy = async () => {
    try {
      await navigator.clipboard.writeText(this.props.text);
    } catch {
      return; // The browser asks, and a person may say no.
    }
    this.setState({ copied: true });
    setTimeout(() => this.setState({ copied: false }), COPIED_MS);
  };

  render() {
    if (!navigator.clipboard) return null; // Only pages with a secure connection have it.
    const icon = this.state.copied ? "check" : "content-copy";
    return html`<button class="icon" title="Copy" aria-label="Copy this message"
      onClick=${this.copy}><${Icon} name=${icon} /></button>`;
  }
}

// Above the text, which grows: nothing that is read moves.
function Standing({ turn, pending, state, now }) {
  if (!pending) return html`<p class="standing-line muted small">${tookOf(turn, state)}</p>`;
  const { phase, text } = standingOf(turn, state, now);
  return html`<p class=${`standing-line ${phase}`}>
      <span class="pulse" aria-hidden="true"></span>${text}</p>
    <span class="hidden" role="status">${SPOKEN[phase]}</span>`;
}
