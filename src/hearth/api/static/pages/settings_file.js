// What the saved file would change, or why it is refused.

import { html } from "../vendor/htm-preact-3.1.1.module.js";
import { Icon } from "../icons.js";
import { Empty, Panel } from "../parts.js";
import { itemText } from "./settings_rows.js";

const PROBLEM = /^(.*?):(\d+): ([^ ]+): ([^]*)$/;

export function SavedFile({ page, problem, orders, ask, again }) {
  const tools = html`<button class="icon" aria-label="Look at the file again" title="Look again"
      onClick=${again}><${Icon} name="refresh" /></button>
    ${ask ? html`<button onClick=${() => ask(orders.reload())}>Reload</button>` : null}`;
  const isFile = page && page.source !== "defaults";
  return html`<${Panel} title="Saved file" id="file-title" className="saved-file" tools=${tools}>
    ${isFile ? html`<p class="small muted"><code>${page.source}</code></p>` : null}
    ${problem ? html`<p class="wrong" role="alert">${problem}</p>` : null}
    ${page ? html`<${Findings} page=${page} isFile=${isFile} />` : html`<${Empty}>One moment.<//>`}
  <//>`;
}

function Findings({ page: { problems, changes }, isFile }) {
  if (problems.length) {
    return html`<p class="wrong">It is not usable, so the settings above stay in force:</p>
      <ul class="problems">${problems.map((each) => html`<${Problem} key=${each} text=${each} />`)}
      </ul>`;
  }
  if (changes.length) {
    return html`<ul class="changes">
      ${changes.map((each) => html`<${Change} key=${each.path} change=${each} />`)}</ul>`;
  }
  return html`<${Empty}>${isFile
    ? "It says what is in force."
    : "There is no file: the built-in defaults are in force."}<//>`;
}

// `file:line: setting: what is wrong, and what to do`
function Problem({ text }) {
  const [, , line, path, what] = PROBLEM.exec(text) ?? [];
  if (!line) return html`<li>${text}</li>`;
  return html`<li><span class="badge warn">line ${line}</span> <code>${path}</code> ${what}</li>`;
}

function Change({ change: { path, old, new: next, hot } }) {
  return html`<li>
    <code>${path}</code>
    <span class=${`badge ${hot ? "" : "warn"}`}>${hot ? "at once" : "with a restart"}</span>
    <p><del><span class="hidden">from </span><code>${shown(old)}</code></del>
      <ins><span class="hidden">to </span><code>${shown(next)}</code></ins></p>
  </li>`;
}

// Of a secret only that it is another one is known. Of a table of entries, a line each.
function shown(value) {
  if (value === null) return "unset";
  if (!isTable(value)) return JSON.stringify(value);
  const rows = Object.values(value);
  if (rows.length && rows.every(isTable)) return rows.map(itemText).join("\n");
  return itemText(value) || "none";
}

const isTable = (value) => value !== null && typeof value === "object" && !Array.isArray(value);
