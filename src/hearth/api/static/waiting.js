// What waits, in the order in which it is expected to start, or grouped where that is much.

import { html } from "./vendor/htm-preact-3.1.1.module.js";
import { count, startsIn, startsWithin, waitsFor, whole } from "./format.js";
import { Caller, CancelButton, Empty, Lane, Model, Panel } from "./parts.js";

const GROUPED_FROM = 12; // More than that are shown by model and caller.
const WAYS = [[false, "One by one"], [true, "Grouped"]];

// `group` sets how they are shown.
export function Waiting({ grouped, group, ...props }) {
  const { waiting } = props.state;
  const total = waiting.internal + waiting.external;
  const rows = waiting.order.map((sequence) => waiting.rows[sequence]).filter(Boolean);
  const inGroups = grouped ?? total > GROUPED_FROM;
  const shared = { ...props, rows, total };
  return html`<${Panel} title="Waiting" id="waiting-title" className="line"
    tools=${rows.length ? html`<${Ways} chosen=${inGroups} choose=${group} />` : null}
    note=${total ? `${count(total)}, in expected order` : ""}>
    <div class="box scroll" tabindex="0">
      ${rows.length
        ? inGroups
          ? html`<${Groups} ...${shared} />`
          : html`<${Line} ...${shared} />`
        : html`<${Empty}>No requests are waiting.<//>`}
    </div>
  <//>`;
}

function Ways({ chosen, choose }) {
  return html`<span class="segmented" role="group" aria-label="How waiting requests are shown">
    ${WAYS.map(([value, text]) => html`<button key=${text} aria-pressed=${String(chosen === value)}
      onClick=${() => choose(value)}>${text}</button>`)}</span>`;
}

function Line({ rows, total, ...props }) {
  return html`<table class="queue">
      <caption class="hidden">Waiting requests in the order in which they are expected to start
      </caption>
      <thead><tr>
        <th scope="col" class="number">#</th><th scope="col">Caller</th><th scope="col">Model</th>
        <th scope="col">Waits for</th><th scope="col" class="number">Waited</th>
        <th scope="col" class="number">Starts</th>
        <th scope="col"><span class="hidden">Cancel</span></th>
      </tr></thead>
      <tbody>${rows.map((item, index) => html`<${Row} key=${item.sequence} item=${item}
        index=${index} ...${props} />`)}</tbody>
    </table>
    ${total > rows.length
      ? html`<p class="more">and ${count(total - rows.length)} more</p>`
      : null}`;
}

function Row({ item, index, now, state, orders, ask, show }) {
  return html`<tr>
    <td class="number muted">${index + 1}</td>
    <td><${Lane} item=${item} /> <${Caller} item=${item} show=${show} />
      ${item.task_type ? html` <span class="muted">${item.task_type}</span>` : null}
      ${item.interrupts ? html` <span class="badge warn">${item.interrupts}×</span>` : null}</td>
    <td><${Model} name=${item.model} /></td>
    <td class="why">${waitsFor(item.why, index, now)}</td>
    <td class="number">${whole(now - item.arrived)}</td>
    <td class="number" title=${startTitle(item, now)}>
      ${startsIn(item.start, now)}${item.rough && item.start != null ? " ?" : null}</td>
    <td class="end"><${CancelButton} item=${item} state=${state} orders=${orders} ask=${ask} /></td>
  </tr>`;
}

function startTitle(item, now) {
  const parts = [
    item.bound == null ? "" : `90 % of such requests start ${startsWithin(item.bound, now)}`,
    item.rough ? "a guess: little is known yet about a model ahead of it" : "",
  ];
  return parts.filter(Boolean).join("; ") || null;
}

// The gateway counts every model; of callers only those of the first requests are known.
function groupsOf(rows, models) {
  const groups = new Map();
  const of = (key) => {
    const model = key === "*" ? null : key;
    if (!groups.has(key)) groups.set(key, { model, callers: new Map(), oldest: null, next: null });
    return groups.get(key);
  };
  for (const item of rows) {
    const group = of(item.model ?? "*");
    group.callers.set(item.caller, (group.callers.get(item.caller) ?? 0) + 1);
    group.oldest = Math.min(group.oldest ?? Infinity, item.arrived);
    group.next ??= item.start;
  }
  for (const key of Object.keys(models)) of(key);
  return [...groups];
}

function Groups({ rows, total, now, state: { waiting } }) {
  return html`<table class="groups"><caption class="hidden">Waiting requests by model</caption>
    <thead><tr>
      <th scope="col">Model</th><th scope="col" class="number">Waiting</th>
      <th scope="col">Callers</th><th scope="col" class="number">Longest wait</th>
      <th scope="col" class="number">Next starts</th>
    </tr></thead>
    <tbody>${groupsOf(rows, waiting.models).map(([key, group]) => html`<${Group} key=${key}
      group=${group} number=${waiting.models[key]} now=${now} />`)}</tbody></table>
    ${total > rows.length
      ? html`<p class="more">Only the callers of the first ${count(rows.length)} requests are
          shown.</p>`
      : null}`;
}

function Group({ group, number, now }) {
  return html`<tr>
    <td><${Model} name=${group.model} /></td>
    <td class="number">${count(number)}</td>
    <td>${[...group.callers].map(([name, each]) => html`<span class="chip" key=${name}>
      ${name} <span class="muted">${count(each)}</span></span>`)}</td>
    <td class="number">${group.oldest == null ? "–" : whole(now - group.oldest)}</td>
    <td class="number">${startsIn(group.next, now)}</td>
  </tr>`;
}
