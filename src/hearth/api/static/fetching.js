// What a page asks of an address: one answer at a time, the latest question's.

import { BASE } from "./base.js";
import { errorText } from "./feed.js";

const LATE_MS = 30_000; // An answer that takes longer is not waited for.
const AGAIN_MS = 3000; // What may pass by itself is asked again after this.

// `answer`, or `problem` and whether that may pass by itself. `given`: the signal of whoever may
// give the question up.
export async function answerOf(feed, address, given) {
  const abort = new AbortController();
  given.addEventListener("abort", () => abort.abort());
  const late = setTimeout(() => abort.abort(), LATE_MS);
  try {
    const options = { headers: feed.headers, signal: abort.signal, cache: "no-store" };
    const response = await fetch(BASE + address, options);
    if (response.ok) return { answer: await response.json(), problem: "" };
    return { problem: await errorText(response), passes: response.status >= 500 };
  } catch {
    return { problem: "Hearth does not answer.", passes: true };
  } finally {
    clearTimeout(late);
  }
}

// Asks, and asks again while there is a problem that may pass. `take` is called with each outcome
// until `signal` is aborted.
export async function askUntil(feed, address, signal, take) {
  const { answer, problem, passes } = await answerOf(feed, address, signal);
  if (signal.aborted) return;
  take(answer, problem);
  if (!passes) return;
  const again = setTimeout(() => askUntil(feed, address, signal, take), AGAIN_MS);
  signal.addEventListener("abort", () => clearTimeout(again));
}

// Calls `changed` after every change of `answer` (the last one, null before the first), `problem`
// (text, empty for none) and `loading`.
export class Loaded {
  constructor(feed, changed) {
    this._feed = feed;
    this._changed = changed;
    this._abort = null;
    this._address = null;
    this.answer = null;
    this.problem = "";
    this.loading = false;
  }

  // Asks where the address is another than before; what was under way is given up.
  show(address) {
    if (address !== this._address) this.ask(address);
  }

  ask(address = this._address) {
    this._abort?.abort();
    const { signal } = (this._abort = new AbortController());
    this._address = address;
    this.loading = true;
    askUntil(this._feed, address, signal, (answer, problem) => {
      this.loading = false;
      this.problem = problem;
      if (!problem) this.answer = answer;
      this._changed();
    });
  }

  close() {
    this._abort?.abort();
  }
}
