// Keyboard shortcuts, and the overlay that lists them.

import { html, Component } from "./vendor/htm-preact-3.1.1.module.js";
import { Icon } from "./icons.js";

const SHORTCUTS = [
  ["/", "Search the requests"],
  ["Esc", "Close a dialog, leave a field"],
  ["w", "Switch the wall view on or off"],
  ["t", "Switch between dark and light"],
  ["1, 2, 3", "Show 10 minutes, 30 minutes, 1 hour"],
  ["?", "Show this list"],
];

// Calls `actions[key]` for a key pressed outside of inputs. Returns a function that stops it.
export function listen(actions) {
  const pressed = (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]"))
      return;
    const typing = event.target.closest?.("input, textarea, select");
    if (typing && event.key !== "Escape") return;
    const action = actions[event.key];
    if (!action) return;
    event.preventDefault();
    action();
  };
  document.addEventListener("keydown", pressed);
  return () => document.removeEventListener("keydown", pressed);
}

// A dialog for anything. The element brings focus, Escape and the backdrop.
export class Dialog extends Component {
  componentDidMount() {
    this.node.showModal();
  }

  componentWillUnmount() {
    this.node.close();
  }

  render({ title, close, children, className = "" }) {
    return html`<dialog ref=${(node) => (this.node = node)} class=${className} onClose=${close}
      aria-labelledby="dialog-title">
      <header class="dialog-head"><h2 id="dialog-title">${title}</h2>
        <button class="icon" aria-label="Close" onClick=${close}><${Icon} name="close" /></button>
      </header>
      ${children}
    </dialog>`;
  }
}

// `opening`: a key and a text for each page.
export function Help({ opening, close }) {
  return html`<${Dialog} title="Keyboard shortcuts" close=${close}>
    <dl class="shortcuts">${[...opening, ...SHORTCUTS].map(([key, text]) => html`<div key=${key}>
      <dt><kbd>${key}</kbd></dt><dd>${text}</dd></div>`)}</dl>
  <//>`;
}
