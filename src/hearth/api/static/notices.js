// What must not be overlooked: the connection, the model server, the configuration.

import { html, Component } from "./vendor/htm-preact-3.1.1.module.js";
import { clock } from "./format.js";
import { Standing } from "./standing.js";

// A line that is always there, so that nothing below moves: the most urgent notice, and how many
// more there are.
export class Notices extends Component {
  render({ feed, orders, ask }) {
    const { link, state } = feed;
    const gateway = state ? ofGateway(state) : [];
    const [first, ...more] = link.status === "locked" ? [] : [...ofConnection(feed), ...gateway];
    return html`<div class="notices" role="alert">
        ${first ? html`<${Notice} notice=${first} />` : null}
        ${more.length ? html`<${More} notices=${more} />` : null}
      </div>
      ${state
        ? html`<${Standing} state=${state} now=${feed.now()} orders=${orders} ask=${ask} />`
        : null}`;
  }
}

function Notice({ notice: [tone, text] }) {
  return html`<p class=${`notice ${tone}`}>${text}</p>`;
}

function More({ notices }) {
  return html`<details class="more-notices"><summary>${notices.length} more</summary>
    ${notices.map((notice) => html`<${Notice} key=${notice[1]} notice=${notice} />`)}</details>`;
}

function ofConnection({ state, link }) {
  if (link.status !== "waiting" || !state) return [];
  const since = clock(link.since / 1000);
  const text = `Everything below is from ${since}. The page keeps trying to connect.`;
  return [["bad", `${link.reason}. ${text}`]];
}

function ofGateway({ house }) {
  const notices = [];
  if (house.reason && house.reason !== "draining") {
    notices.push(["bad", `Requests cannot run: ${house.reason}.`]);
  }
  if (house.draining) {
    const text = "Hearth is stopping: new requests are refused, running ones may finish.";
    notices.push(["warn", text]);
  }
  const problems = house.config.problems.length;
  if (problems) {
    const what = problems === 1 ? "a mistake" : `${problems} mistakes`;
    const then = "the previous configuration stays in force";
    notices.push(["bad", `The configuration file has ${what}; ${then}.`]);
  }
  if (house.backend.emulator) notices.push(["emulator", emulated(house.backend)]);
  for (const warning of house.warnings) {
    notices.push(["warn", `${warning[0].toUpperCase()}${warning.slice(1)}`]);
  }
  return notices;
}

function emulated({ instead_of: until }) {
  const then = until ? ` Start Ollama at ${until}: Hearth then uses it.` : "";
  return `THE EMULATOR IS ANSWERING: no model runs, every text is made up.${then}`;
}
