// Where the request of an answer stands, by its own row in the live state, and what it took.

import { count, duration, ofExpected, rate, short } from "../format.js";
import { startsIn, startsWithin, waitsFor } from "../format.js";

const HOW = { continued: "continued where it stopped", replayed: "replayed and compared" };

function rowOf(rows, id) {
  return Object.values(rows).find((row) => row.request_id === id) ?? null;
}

// The phase, and what is to be said of it.
export function standingOf(turn, state, now) {
  const waiting = rowOf(state.waiting.rows, turn.id);
  if (waiting) return waitingOf(turn, waiting, state, now);
  if (turn.first) return { phase: "writing", text: writing(turn, now) };
  const running = rowOf(state.running, turn.id);
  if (!running) return sent(turn, state, now);
  const passed = duration(now - running.dispatched);
  const waited = duration(running.dispatched - running.arrived);
  const text = `${short(running.model)} reads the prompt, for ${passed}. Waited ${waited}.`;
  return { phase: "reading", text };
}

// Of a long queue the live state has only the first.
function sent(turn, state, now) {
  const { internal, external, order } = state.waiting;
  const passed = `Sent ${duration(now - turn.began)} ago.`;
  if (internal + external <= order.length) return { phase: "sent", text: passed };
  return { phase: "waiting", text: `In the queue, behind the first ${order.length}. ${passed}` };
}

function waitingOf(turn, row, state, now) {
  const place = Math.max(0, state.waiting.order.indexOf(row.sequence));
  const { swap } = state.gpu;
  const why = `waits for ${waitsFor(row.why, place, now)}`;
  const soFar = `Waited ${duration(now - row.arrived)} so far.`;
  if (turn.first || row.interrupts) {
    const how = "Interrupted; the answer goes on by itself";
    return { phase: "interrupted", text: `${how}. It ${why}. ${expected(row, now)}` };
  }
  if (swap?.to && swap.to === row.model) {
    const passed = ofExpected(now - swap.since, swap.cost_s);
    return { phase: "loading", text: `Loading ${short(swap.to)} for ${passed}. ${soFar}` };
  }
  const where = place ? `Number ${place + 1} in the queue` : "Next in the queue";
  return { phase: "waiting", text: `${where}: ${why}. ${soFar} ${expected(row, now)}` };
}

function expected(row, now) {
  if (row.start == null) return "";
  const bound = row.bound == null ? "" : `, 90 % ${startsWithin(row.bound, now)}`;
  return `Starts ${startsIn(row.start, now)}${bound}.`;
}

function writing(turn, now) {
  const passed = now - turn.first;
  const speed = turn.parts > 4 && passed > 1 ? `, about ${rate(turn.parts / passed)}` : "";
  const doing = turn.thinking && !turn.text ? "Thinking" : "Answering";
  const first = duration(turn.first - turn.began);
  return `${doing} for ${duration(Math.max(0, passed))}${speed}. First word after ${first}.`;
}

// Once it has ended.
export function tookOf(turn, state) {
  const row = rowOf(state.recent, turn.id);
  if (row) turn.took = partsOf(row); // The live state forgets it some time.
  const parts = [
    turn.stopped ? "Stopped" : "",
    turn.first ? `first word after ${duration(turn.first - turn.began)}` : "",
    ...(turn.took ?? []),
    turn.tokens ? `${count(turn.tokens)} tokens` : "",
    turn.speed ? rate(turn.speed) : "",
    turn.promptTokens ? `prompt of ${count(turn.promptTokens)} tokens` : "",
    turn.why === "length" ? "cut at its limit of tokens" : "",
    turn.ended > turn.began ? `${duration(turn.ended - turn.began)} in total` : "",
  ];
  return parts.filter(Boolean).join(" · ");
}

function partsOf(row) {
  const times = row.interrupts === 1 ? "once" : `${row.interrupts} times`;
  const how = row.resumed ? `, ${HOW[row.resumed] ?? row.resumed}` : "";
  return [
    row.queue_s >= 0.05 ? `${duration(row.queue_s)} in the queue` : "",
    row.swap_s >= 0.05 ? `${duration(row.swap_s)} of a swap` : "",
    row.interrupts ? `interrupted ${times}${how}` : "",
  ];
}
