// What the time of an ended request went to, as a bar.

import { html } from "./vendor/htm-preact-3.1.1.module.js";
import { duration, runOf } from "./format.js";

const SEEN_S = 0.05; // What took less is not named.

export const PHASES = [
  ["queue", "waiting"],
  ["swap", "swap"],
  ["first", "reading"],
  ["write", "answering"],
  ["work", "reading and answering"],
];

export function phasesOf(item) {
  const swap = Math.min(item.swap_s ?? 0, item.queue_s);
  return { queue: item.queue_s - swap, swap, ...runOf(item) };
}

// `longest`: the seconds of a whole bar.
export function Phases({ item, longest }) {
  const phases = phasesOf(item);
  const named = PHASES.filter(([name]) => phases[name] >= SEEN_S);
  const words = named.map(([name, word]) => `${word} ${duration(phases[name])}`);
  const text = words.join(", ") || "less than 50 ms";
  const shown = PHASES.filter(([name]) => phases[name] > 0);
  return html`<span class="bar" role="img" aria-label=${text} title=${text}>
    ${shown.map(([name]) => html`<i key=${name} class=${`phase ${name}`}
      style=${{ width: `${(phases[name] / longest) * 100}%` }}></i>`)}</span>`;
}

export function PhaseLegend() {
  return html`<span class="legend">${PHASES.map(([name, text]) => html`<span key=${name}>
    <i class=${`phase ${name}`}></i>${text}</span>`)}</span>`;
}
