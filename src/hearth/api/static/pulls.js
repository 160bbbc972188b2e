// Models that are being pulled: they go on while another page of the dashboard is shown, and end
// with the tab.

import { BASE } from "./base.js";
import { errorText } from "./feed.js";

const SPEED_OVER_S = 8; // Long enough to be calm, short enough to follow a line that gets slower.

export const pulls = {
  all: [],
  changed: () => {},

  // `engine`: the one of `/llm/models` that is to have it.
  start(feed, name, engine) {
    const { name: own, kind } = engine;
    const empty = { status: "asking", layers: new Map(), samples: [] };
    const pull = { name, engine: own, kind, ...empty };
    Object.assign(pull, { began: seconds(), abort: new AbortController() });
    this.all = [...this.all.filter((other) => other.name !== name || !other.over), pull];
    this.changed();
    return follow(feed, pull);
  },

  // Leaves one that is under way: Ollama gives it up and keeps what has come, LM Studio goes on.
  stop(pull) {
    pull.abort.abort();
  },

  forget(pull) {
    this.all = this.all.filter((other) => other !== pull);
    this.changed();
  },
};

// The tab is what a pull lives in: whoever closes it is asked.
addEventListener("beforeunload", (event) => {
  if (pulls.all.some((pull) => !pull.over)) event.preventDefault();
});

const seconds = () => performance.now() / 1000;

async function follow(feed, pull) {
  try {
    await read(feed, pull);
    if (!pull.problem) pull.done = true;
  } catch {
    if (pull.abort.signal.aborted) pull.stopped = true;
    else pull.problem ??= "The connection broke off. Pull it again: what has come is kept.";
  }
  pull.over = true;
  pulls.changed();
}

async function read(feed, pull) {
  const address = `${BASE}/api/pull?engine=${encodeURIComponent(pull.engine)}`;
  const headers = { "content-type": "application/json", ...feed.headers };
  const body = JSON.stringify({ model: pull.name });
  const { signal } = pull.abort;
  const asked = { method: "POST", body, headers, signal, cache: "no-store" };
  const response = await fetch(address, asked);
  if (!response.ok) {
    pull.problem = await errorText(response);
    return;
  }
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let buffered = "";
  for (;;) {
    const { value, done } = await reader.read();
    const lines = (buffered + (value ?? "")).split("\n");
    buffered = done ? "" : lines.pop();
    for (const line of lines.filter(Boolean)) take(pull, JSON.parse(line));
    if (done) break;
  }
  if (!pull.problem && pull.status !== "success") throw new Error("the pull has no end");
}

// A line is about one file of the model (`digest`), of which there are several at a time.
function take(pull, { status, error, digest, total, completed }) {
  if (error) pull.problem = String(error);
  if (status) pull.status = status;
  if (digest && total) pull.layers.set(digest, { total, completed: completed ?? 0 });
  const { completed: bytes } = progressOf(pull);
  const now = seconds();
  pull.samples = [...pull.samples.filter(([at]) => now - at < SPEED_OVER_S), [now, bytes]];
  pulls.changed();
}

// Bytes so far and in all, as far as they are known, bytes per second, and seconds that are left.
export function progressOf(pull) {
  const layers = [...pull.layers.values()];
  const total = layers.reduce((sum, layer) => sum + layer.total, 0);
  const completed = layers.reduce((sum, layer) => sum + layer.completed, 0);
  const [first, last] = [pull.samples[0], pull.samples.at(-1)];
  const passed = first ? last[0] - first[0] : 0;
  const speed = passed > 0.5 ? (last[1] - first[1]) / passed : null;
  return { total, completed, speed, left: speed > 0 ? (total - completed) / speed : null };
}
