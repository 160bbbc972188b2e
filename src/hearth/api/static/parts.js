// What several panels are made of. Text is always a text node.

import { html, Component } from "./vendor/htm-preact-3.1.1.module.js";
import { shadeClass } from "./colours.js";
import { Icon } from "./icons.js";
import { short } from "./format.js";

export function Panel({ title, note, tools, children, id, className = "" }) {
  return html`<section class=${`panel ${className}`} aria-labelledby=${id}>
    <header><h2 id=${id}>${title}</h2>
      ${note ? html`<span class="note">${note}</span>` : null}
      <span class="tools">${tools}</span></header>
    ${children}
  </section>`;
}

export function Empty({ children }) {
  return html`<p class="empty">${children}</p>`;
}

export function Model({ name }) {
  const title = name ?? "any model in memory";
  return html`<span class=${`model ${shadeClass(name)}`} title=${title}>${short(name)}</span>`;
}

// How far `value` is on the way to `most`. A limit is used up when it is reached; a warning
// (`beyond`) is given when it is passed.
export function Meter({ label, value, most, beyond, text, className = "" }) {
  const part = most > 0 ? Math.min(1, Math.max(0, value / most)) : 0;
  const over = beyond ? value > most : value >= most;
  const tone = over ? "over" : part >= 0.8 ? "near" : "";
  return html`<span class=${`meter ${tone} ${className}`} role="meter" aria-label=${label}
    aria-valuemin="0" aria-valuemax=${most} aria-valuenow=${Math.min(value, most)}
    aria-valuetext=${text}><i style=${{ width: `${part * 100}%` }}></i></span>`;
}

const BANDS = {
  critical: "internal, critical",
  normal: "internal",
  background: "internal, background",
};

const OTHERS = { interrupted: "interrupted", external_background: "background" };

// Nothing for ordinary external requests, which are the most.
export function Lane({ item }) {
  const internal = item.lane === "internal";
  const text = internal ? (BANDS[item.band] ?? "internal") : (OTHERS[item.band] ?? null);
  if (!text) return null;
  const tone = internal ? "internal" : "external";
  const title = internal ? "your own request" : "a request of another program";
  return html`<span class=${`badge ${tone}`} title=${title}>${text}</span>`;
}

export function CancelButton({ item, state, orders, ask }) {
  if (!ask || (!state.you.admin && item.caller !== state.you.caller)) return null;
  const label = `Cancel ${item.caller}'s request ${item.request_id}`;
  return html`<button class="icon" aria-label=${label} title="Cancel"
    onClick=${() => ask(orders.cancel(item))}><${Icon} name="close" /></button>`;
}

// Opens the details of a request.
export function Caller({ item, show }) {
  if (!show) return html`<b class="caller">${item.caller}</b>`;
  const label = `Details of ${item.caller}'s request ${item.request_id}`;
  return html`<button class="caller link-like" aria-label=${label}
    onClick=${() => show(item)}>${item.caller}</button>`;
}

// A text to take along, with the button that copies it. Without a secure connection a browser lets
// no page write to the clipboard; then the text is selected instead.
export class Copied extends Component {
  state = { done: false };

  copy = async () => {
    try {
      await navigator.clipboard.writeText(this.props.text);
    } catch {
      getSelection().selectAllChildren(this.node);
      if (!document.execCommand("copy")) return;
      getSelection().removeAllRanges();
    }
    this.setState({ done: true });
  };

  // `block`: several lines.
  render({ text, label, block }) {
    return html`<span class=${`copied ${block ? "block" : ""}`}>
      <code ref=${(node) => (this.node = node)}>${text}</code>
      <button class="icon" title="Copy" aria-label=${`Copy ${label ?? text}`} onClick=${this.copy}>
        <${Icon} name=${this.state.done ? "check" : "content-copy"} /></button></span>`;
  }
}
