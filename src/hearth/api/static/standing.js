// Admin commands in force, each with the button that ends it.

import { html } from "./vendor/htm-preact-3.1.1.module.js";
import { count, day, gib, holders, short } from "./format.js";

export function Standing({ state, now, orders, ask }) {
  const standing = standingOrders(state, now);
  if (!standing.length) return null;
  const ending = {
    pinned: () => orders.unpin(state.orders.pinned),
    yielded: () => orders.takeBack(state.leases),
    draining: () => orders.resume(),
    paused: () => orders.resume(),
  };
  return html`<section class="standing" aria-label="Admin commands in force">
    ${standing.map(([name, title, text, label]) => html`<div key=${name} class=${`order ${name}`}>
      <p><b>${title}</b> ${text}</p>
      ${state.you.admin && ask
        ? html`<button class="primary" onClick=${() => ask(ending[name]())}>${label}</button>`
        : null}</div>`)}
  </section>`;
}

// A name, a title, a text and the label of the button, of each.
export function standingOrders({ orders: given, leases }, now) {
  const since = (name) => (given.since?.[name] ? ` Since ${day(given.since[name], now)}.` : "");
  const standing = [];
  const add = (name, title, text, label) =>
    standing.push([name, title, `${text}${since(name)}`, label]);
  if (leases?.held.length) standing.push(["yielded", ...yielded(leases, now), "Take it back"]);
  if (given?.draining) {
    const text = "New requests are refused; waiting and running ones finish; jobs are kept.";
    add("draining", "Draining.", text, "Resume");
  }
  if (given?.paused?.length) {
    const text = "They are accepted and wait; internal requests go on.";
    add("paused", "External requests are paused.", text, "Resume");
  }
  if (given?.pinned) {
    const text = "No external request can unload it.";
    add("pinned", `${short(given.pinned)} is pinned.`, text, "Unpin");
  }
  return standing;
}

function yielded({ state, held, to, mib, until, waiting, in_the_way: left }, now) {
  const done = state === "yielded";
  const what = mib == null ? "The GPU is" : `${gib(mib)} of the GPU are`;
  const since = day(Math.min(...held.map((lease) => lease.since)), now);
  const end = until == null ? "until it ends" : `until ${day(until, now)}`;
  const stays = left.length ? ` Still in memory: ${left.map(short).join(", ")}.` : "";
  const number = waiting === 1 ? "request waits" : "requests wait";
  const waits = waiting ? ` ${count(waiting)} ${number}.` : "";
  const whom = `${done ? "to" : "for"} ${holders(held, to)}`;
  return [
    `${what} ${done ? "yielded" : "being freed"}`,
    `${whom}, since ${since}, ${end}.${waits}${stays}`,
  ];
}
