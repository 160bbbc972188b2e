// What must not be overlooked: the state of the connection and the house, most urgent first, and the orders that stand.

import { html } from "./vendor/htm-preact-3.1.1.module.js";
import { alertText, clock, day, short } from "./format.js";

export function Notices({ feed, orders, ask }) {
  const notices = feed.link.status === "locked" ? [] : [...ofConnection(feed), ...(feed.state ? ofHouse(feed.state) : [])];
  return html`<div class="notices" role="alert">${notices.map(([tone, text]) => html`<p key=${text} class=${`notice ${tone}`}>${text}</p>`)}</div>
    ${feed.state ? html`<${Standing} state=${feed.state} now=${feed.now()} orders=${orders} ask=${ask} />` : null}`;
}

function ofConnection({ state, link }) {
  if (link.status !== "waiting" || !state) return [];
  return [["bad", `${link.reason}. What is shown is as of ${clock(link.since / 1000)}; the page goes on trying.`]];
}

function ofHouse({ house }) {
  const notices = [];
  if (house.backend.emulator) notices.push(["emulator", "THE EMULATOR IS ANSWERING: no model runs, every text is made up."]);
  if (house.reason && house.reason !== "draining") notices.push(["bad", `No work can be done: ${house.reason}.`]);
  if (house.draining) notices.push(["warn", "Hearth is stopping: nothing new is taken, running work may finish."]);
  const problems = house.config.problems.length;
  if (problems) notices.push(["bad", `The configuration file has ${problems === 1 ? "a mistake" : `${problems} mistakes`}; the old configuration stays in force.`]);
  for (const warning of house.warnings) notices.push(["warn", `${warning[0].toUpperCase()}${warning.slice(1)}`]);
  const alerts = (house.alerts?.active ?? []).filter(({ type }) => type !== "config_rejected" && type !== "backend_down");
  const told = alerts.map(({ type, subject }) => `${alertText(type)}${subject ? ` (${short(subject)})` : ""}`);
  if (told.length) notices.push(["warn", told.join(" · ")]);
  return notices;
}

// Orders of the owner that are in force, each with the button that ends it.
function Standing({ state, now, orders, ask }) {
  const standing = standingOrders(state.orders, now);
  if (!standing.length) return null;
  return html`<section class="standing" aria-label="Orders in force">${standing.map(([name, title, text, label]) => html`<div key=${name} class=${`order ${name}`}>
    <p><b>${title}</b> ${text}</p>
    ${state.you.admin ? html`<button class="primary" onClick=${() => ask(name === "pinned" ? orders.unpin(state.orders.pinned) : orders.resume())}>${label}</button>` : null}</div>`)}</section>`;
}

export function standingOrders(given, now) {
  const standing = [];
  const since = (name) => (given.since?.[name] ? ` Since ${day(given.since[name], now)}.` : "");
  if (given?.draining) standing.push(["draining", "Draining.", `New requests are refused; what waits and runs is finished; jobs are kept.${since("draining")}`, "Resume"]);
  if (given?.paused?.length) standing.push(["paused", "Other programs are paused.", `Their requests are taken and wait; the house's own work goes on.${since("paused")}`, "Resume"]);
  if (given?.pinned) standing.push(["pinned", `${short(given.pinned)} is pinned.`, `No other program's request takes it out of memory.${since("pinned")}`, "Unpin"]);
  return standing;
}
