// What a page asks of an address: one answer at a time, the latest question's.

import { BASE } from "./base.js";
import { errorText } from "./feed.js";

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

  async ask(address = this._address) {
    this._abort?.abort();
    const abort = (this._abort = new AbortController());
    this._address = address;
    this.loading = true;
    const { answer, problem } = await this._get(address, abort.signal);
    if (abort.signal.aborted) return;
    this.loading = false;
    this.problem = problem;
    if (!problem) this.answer = answer;
    this._changed();
  }

  async _get(address, signal) {
    try {
      const options = { headers: this._feed.headers, signal, cache: "no-store" };
      const response = await fetch(BASE + address, options);
      if (!response.ok) return { problem: await errorText(response) };
      return { answer: await response.json(), problem: "" };
    } catch {
      return { problem: "Hearth does not answer." };
    }
  }

  close() {
    this._abort?.abort();
  }
}
