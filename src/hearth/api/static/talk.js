// The conversation of this tab with a model: its turns, what is asked with them, and the answer
// that is coming. It goes on while another page of the dashboard is shown.

import { BASE } from "./base.js";
import { errorText } from "./feed.js";

const KEPT = `hearth.talk${BASE}`; // A proxy may serve several gateways.
const SAVED_EVERY_MS = 1000;
export const OPTIONS = ["temperature", "top_p", "num_predict", "seed"];
const BROKEN_OFF = "The connection to Hearth broke off.";
const FRESH = { model: "", system: "", think: "", options: {}, turns: [], draft: "" };

let latest = null;

// The one of this tab and caller: another one who signs in does not see it.
export function talkOf(feed, caller) {
  if (latest?.caller !== caller) {
    latest?.stop();
    latest = new Talk(feed, caller);
  }
  return latest;
}

addEventListener("pagehide", () => latest?.save());

class Talk {
  constructor(feed, caller) {
    this.caller = caller;
    this.kept = { ...FRESH, ...read(caller) };
    this.pending = null; // The turn that is being answered.
    this.changed = () => {};
    this._feed = feed;
    this._abort = null;
    this._saving = 0;
  }

  set(values) {
    Object.assign(this.kept, values);
    this._tell();
  }

  send(text, images) {
    if (this.pending) return;
    const asked = { role: "user", text, images };
    this.set({ turns: [...this.kept.turns, asked], draft: "" });
    this._answer();
  }

  // Answers the last question once more.
  again() {
    if (this.pending) return;
    const last = this.kept.turns.findLastIndex((turn) => turn.role === "user");
    if (last < 0) return;
    this.set({ turns: this.kept.turns.slice(0, last + 1) });
    this._answer();
  }

  // Takes the last question and its answer out, and returns it.
  takeBack() {
    this.stop();
    const last = this.kept.turns.findLastIndex((turn) => turn.role === "user");
    const asked = this.kept.turns[last];
    this.set({ turns: this.kept.turns.slice(0, last), draft: asked.text });
    return asked;
  }

  stop() {
    this._abort?.abort();
  }

  clear() {
    this.stop();
    this.set({ turns: [], draft: "" });
  }

  async _answer() {
    const abort = (this._abort = new AbortController());
    const body = this._body();
    const turn = { role: "assistant", text: "", thinking: "", model: this.kept.model, parts: 0 };
    Object.assign(turn, { id: newId(), began: Date.now() / 1000 });
    this.pending = turn;
    this.set({ turns: [...this.kept.turns, turn] });
    try {
      await this._stream(turn, body, abort.signal);
    } catch {
      if (abort.signal.aborted) turn.stopped = true;
      else turn.problem ??= { status: 0, text: BROKEN_OFF };
    }
    turn.ended = Date.now() / 1000;
    if (this.pending === turn) this.pending = null;
    this._tell();
  }

  // Only what is set is asked for: everything else is as the model's own settings have it.
  _body() {
    const { model, system, think, options, turns } = this.kept;
    const messages = turns.filter((turn) => turn.text || turn.images?.length).map(messageOf);
    if (system.trim()) messages.unshift({ role: "system", content: system });
    const given = OPTIONS.filter((name) => Number.isFinite(parseFloat(options[name])));
    const set = Object.fromEntries(given.map((name) => [name, Number(options[name])]));
    const body = { model, messages };
    if (given.length) body.options = set;
    if (think) body.think = { on: true, off: false }[think] ?? think;
    return body;
  }

  async _stream(turn, body, signal) {
    const own = { "content-type": "application/json", "x-request-id": turn.id };
    const headers = { ...own, ...this._feed.headers };
    const asked = { method: "POST", body: JSON.stringify(body), headers, signal };
    const response = await fetch(`${BASE}/api/chat`, { ...asked, cache: "no-store" });
    turn.answeredBy = response.headers.get("x-hearth-model");
    turn.madeUp = response.headers.has("x-hearth-emulator");
    if (!response.ok) {
      const retry = Number(response.headers.get("retry-after")) || null;
      turn.problem = { status: response.status, text: await errorText(response), retry };
      return;
    }
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let buffered = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) break;
      const lines = (buffered + value).split("\n");
      buffered = lines.pop();
      for (const line of lines.filter(Boolean)) this._take(turn, JSON.parse(line));
    }
    if (!turn.done && !turn.problem) throw new Error("the answer has no end");
  }

  _take(turn, part) {
    if (part.error) {
      turn.problem = { status: 0, text: String(part.error) }; // The connection breaks off after it.
    } else {
      const { content = "", thinking = "" } = part.message ?? {};
      if (content || thinking) turn.first ??= Date.now() / 1000;
      turn.text += content;
      turn.thinking += thinking;
      turn.parts += Boolean(content || thinking);
      if (part.done) Object.assign(turn, { done: true, why: part.done_reason, ...measured(part) });
    }
    this._tell();
  }

  _tell() {
    this.changed();
    this._saving ||= setTimeout(() => this.save(), SAVED_EVERY_MS);
  }

  save() {
    clearTimeout(this._saving);
    this._saving = 0;
    const turns = this.kept.turns.map(savedTurn);
    try {
      sessionStorage.setItem(KEPT, JSON.stringify({ caller: this.caller, ...this.kept, turns }));
    } catch {
      // Storage is off or full: the conversation is known until the page is closed.
    }
  }
}

// A turn without its pictures, which have no room there.
function savedTurn({ images, ...turn }) {
  return images?.length ? { ...turn, lost: images.length } : turn;
}

function read(caller) {
  try {
    const { caller: whose, ...kept } = JSON.parse(sessionStorage.getItem(KEPT)) ?? {};
    if (whose !== caller) return {};
    return { ...kept, turns: kept.turns.map(readTurn) };
  } catch {
    return {};
  }
}

// A reload ends the answer that was coming.
function readTurn(turn) {
  if (turn.role === "user" || turn.ended) return turn;
  return { ...turn, stopped: true, ended: turn.began };
}

function messageOf({ role, text, images }) {
  const message = { role, content: text };
  const bytesOf = (image) => image.slice(image.indexOf(",") + 1);
  if (images?.length) message.images = images.map(bytesOf);
  return message;
}

function measured(part) {
  const seconds = (part.eval_duration ?? 0) / 1e9;
  return {
    tokens: part.eval_count ?? null,
    promptTokens: part.prompt_eval_count ?? null,
    speed: part.eval_count > 1 && seconds > 0 ? part.eval_count / seconds : null,
  };
}

// One that Hearth takes over, so that the request is found in the feed before its answer begins.
function newId() {
  const bytes = [...crypto.getRandomValues(new Uint8Array(12))];
  return `play_${bytes.map((byte) => byte.toString(16).padStart(2, "0")).join("")}`;
}
