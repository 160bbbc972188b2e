// The one connection: a stream of a state and its patches, read with fetch because EventSource
// cannot send a key.

import { BASE } from "./base.js";

const SILENCE_MS = 40_000; // The gateway sends something every 15 s.
const RETRY_MS = [500, 1000, 2000, 4000, 8000, 15_000];
const KEY = `hearth.key${BASE}`; // A proxy may serve several gateways.

export class Feed {
  // `changed` is called after every change of `state` or `link`.
  constructor(changed) {
    this.state = null;
    this.link = { status: "connecting" };
    this.received = 0; // When bytes last arrived, in terms of performance.now().
    this.key = readKey();
    this._changed = changed;
    this._failures = 0;
    this._skew = 0;
    this._abort = null;
    this._timer = 0;
    this._watchdog = 0;
    document.addEventListener("visibilitychange", () => {
      if (!document.hidden && this.link.status === "waiting") this.connect();
    });
    addEventListener("online", () => this.link.status === "waiting" && this.connect());
  }

  // The gateway's own time now; this machine's clock only measures the time since its last message.
  now() {
    return Date.now() / 1000 + this._skew;
  }

  get headers() {
    // Not `Authorization`: a proxy in front may want that for a password of its own.
    return this.key ? { "x-api-key": this.key } : {};
  }

  // `remember`: on this device, not only in this tab.
  useKey(key, remember = false) {
    this.key = key;
    writeKey(key, remember);
    this.state = null;
    this._failures = 0;
    this.connect();
  }

  // The key that is in use has another secret. What the page shows stays.
  replaceKey(key) {
    this.key = key;
    writeKey(key, isRemembered());
    if (this.link.status === "locked") this.connect();
  }

  async connect() {
    clearTimeout(this._timer);
    this._abort?.abort();
    const abort = (this._abort = new AbortController());
    if (this._failures === 0) this._tell({ status: "connecting" });
    this._watch(abort);
    try {
      const response = await fetch(`${BASE}/llm/dashboard/stream`, {
        headers: this.headers,
        signal: abort.signal,
        cache: "no-store",
      });
      if (!response.ok) return await this._refused(response);
      await this._read(response.body, abort);
      if (abort === this._abort) this._retry("Hearth closed the connection");
    } catch (error) {
      if (abort === this._abort)
        this._retry(abort.signal.aborted ? "The connection is silent" : "Hearth does not answer");
    } finally {
      if (abort === this._abort) clearTimeout(this._watchdog);
    }
  }

  // Gives up a connection on which nothing comes, be it before or after the answer has begun.
  _watch(abort) {
    clearTimeout(this._watchdog);
    this._watchdog = setTimeout(() => abort.abort(), SILENCE_MS);
  }

  async _refused(response) {
    const { status: code } = response;
    if ([401, 429].includes(code) || (code === 400 && this.key)) {
      const retry = Number(response.headers.get("retry-after")) || null;
      this._tell({ status: "locked", code: this.key ? code : null, retry });
      return;
    }
    const reason = await errorText(response);
    if (code === 503) this._retry(reason);
    else this._tell({ status: "refused", reason });
  }

  async _read(body, abort) {
    const reader = body.pipeThrough(new TextDecoderStream()).getReader();
    let buffered = "";
    for (;;) {
      this._watch(abort);
      const { value, done } = await reader.read();
      if (done || abort !== this._abort) return;
      this.received = performance.now();
      buffered += value;
      const frames = buffered.split("\n\n");
      buffered = frames.pop();
      if (frames.some((frame) => this._take(frame))) this._tell({ status: "live" });
    }
  }

  _take(frame) {
    const data = frame
      .split("\n")
      .filter((line) => line.startsWith("data: "))
      .map((line) => line.slice(6))
      .join("\n");
    if (!data) return false;
    const message = JSON.parse(data);
    this._skew = message.now - Date.now() / 1000;
    if (message.state) this.state = message.state;
    else if (this.state) merge(this.state, message.patch);
    this._failures = 0;
    return true;
  }

  _retry(reason) {
    const pause = RETRY_MS[Math.min(this._failures, RETRY_MS.length - 1)];
    this._failures += 1;
    this._tell({ status: "waiting", reason, since: this.link.since ?? Date.now() });
    this._timer = setTimeout(() => this.connect(), pause * (0.8 + 0.4 * Math.random()));
  }

  _tell(link) {
    this.link = link;
    this._changed();
  }
}

// JSON Merge Patch, RFC 7386, in place.
export function merge(target, patch) {
  for (const [key, value] of Object.entries(patch)) {
    if (value === null) delete target[key];
    else if (isMapping(value) && isMapping(target[key])) merge(target[key], value);
    else target[key] = isMapping(value) ? merge({}, value) : value;
  }
  return target;
}

function isMapping(value) {
  return typeof value === "object" && value !== null && !Array.isArray(value);
}

export async function errorText(response) {
  try {
    const body = await response.json();
    const error = typeof body.error === "string" ? body.error : body.error?.message;
    return [error ?? `HTTP ${response.status}`, ...(body.problems ?? [])].join("\n");
  } catch {
    return `HTTP ${response.status}`;
  }
}

// `#key=...` in the address signs in for as long as the page is open, and is taken out of it; a
// browser never sends that part.
function readKey() {
  const given = new URLSearchParams(location.hash.slice(1)).get("key");
  if (given) {
    history.replaceState(null, "", location.pathname + location.search);
    writeKey(given, false);
    return given;
  }
  try {
    return sessionStorage.getItem(KEY) ?? localStorage.getItem(KEY) ?? "";
  } catch {
    return "";
  }
}

function isRemembered() {
  try {
    return localStorage.getItem(KEY) !== null;
  } catch {
    return false;
  }
}

function writeKey(key, remember) {
  try {
    sessionStorage.removeItem(KEY);
    localStorage.removeItem(KEY);
    if (key) (remember ? localStorage : sessionStorage).setItem(KEY, key);
  } catch {
    // Storage is off: the key is known until the page is closed.
  }
}
