// The rows of the request log that a search has found so far, the latest first: a page at a time,
// and those that have ended since.

import { BASE } from "../base.js";
import { errorText } from "../feed.js";
import { askUntil } from "../fetching.js";

const ROWS = 50;
const PAUSE_MS = 2000; // Between two looks at what has ended since.

export class Rows {
  // `changed` is called after every change.
  constructor(feed, changed) {
    this._feed = feed;
    this._changed = changed;
    this._abort = null;
    this._asked = null;
    this._looked = 0;
    this.rows = null; // Null before the first answer.
    this.next = null; // Where the next page begins; null on the last one.
    this.problem = "";
    this.loading = false;
  }

  // Searches anew where something else is asked for.
  show(asked) {
    if (asked === this._asked) return;
    this._asked = asked;
    this.rows = null;
    this.next = null;
    this._get("", (answer) => {
      this.rows = answer.items;
      this.next = answer.next;
    });
  }

  more() {
    this._get(`&before=${this.next}`, (answer) => {
      this.rows = [...this.rows, ...answer.items];
      this.next = answer.next;
    });
  }

  // Puts what has ended since before the rows that are there. True where it asks for that.
  refresh() {
    if (this.loading || !this.rows || performance.now() - this._looked < PAUSE_MS) return false;
    this._get("", (answer) => {
      const known = new Set(this.rows.map(keyOf));
      const fresh = answer.items.filter((row) => !known.has(keyOf(row)));
      // More than a page has ended: what is between them is not known.
      const isWhole = fresh.length < answer.items.length || !this.rows.length;
      this.rows = isWhole ? [...fresh, ...this.rows] : answer.items;
      if (!isWhole) this.next = answer.next;
    });
    return true;
  }

  _get(place, take) {
    this._abort?.abort();
    const { signal } = (this._abort = new AbortController());
    this._looked = performance.now();
    this.loading = true;
    const address = `/llm/log?limit=${ROWS}${this._asked}${place}`;
    askUntil(this._feed, address, signal, (answer, problem) => {
      this.loading = false;
      this.problem = problem;
      if (answer) take(answer);
      this._changed();
    });
  }

  close() {
    this._abort?.abort();
  }
}

// What no other row of the log has.
export function keyOf(row) {
  return `${row.epoch}-${row.sequence}`;
}

// Saves an answer as a file under the name that the gateway gives it. The key goes in a header, so
// it stands in no address. Returns what is wrong, empty where nothing is.
export async function download(feed, address) {
  try {
    const response = await fetch(BASE + address, { headers: feed.headers, cache: "no-store" });
    if (!response.ok) return await errorText(response);
    const named = /filename="([^"]+)"/.exec(response.headers.get("content-disposition"));
    const url = URL.createObjectURL(await response.blob());
    const link = Object.assign(document.createElement("a"), { href: url, download: named[1] });
    link.click();
    setTimeout(() => URL.revokeObjectURL(url), 60_000);
    return "";
  } catch {
    return "Hearth does not answer, or stopped before the end.";
  }
}
