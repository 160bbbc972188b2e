// Addresses: a page has a path, and what it shows is the query, so that back, forward and links
// work.

import { html } from "./vendor/htm-preact-3.1.1.module.js";
import { BASE } from "./base.js";

const MOVED = "hearth-moved";

// The page's name and its query. `/?wall` is how the wall was called before it had a path.
export function here() {
  const query = new URLSearchParams(location.search);
  const path = location.pathname.slice(BASE.length);
  if (path === "/" && query.has("wall")) return { name: "wall", query };
  return { name: /^\/dashboard\/([^/]+)$/.exec(path)?.[1] ?? "now", query };
}

// Values that are null, undefined or empty are left out.
export function addressOf(name, values = {}) {
  const kept = Object.entries(values).filter(([, value]) => value != null && value !== "");
  const query = new URLSearchParams(kept).toString();
  const path = name === "now" ? "/" : `/dashboard/${name}`;
  return `${BASE}${path}${query ? `?${query}` : ""}`;
}

// `replace`: without an entry in the history, as for a field that is being typed in. The address
// that one is at gets no second entry either.
export function go(name, values = {}, { replace = false } = {}) {
  const address = addressOf(name, values);
  const stays = replace || address === location.pathname + location.search;
  history[stays ? "replaceState" : "pushState"](null, "", address);
  dispatchEvent(new Event(MOVED));
}

// Calls `moved` with the event of every change of the address. Returns a function that stops it.
export function follow(moved) {
  for (const event of ["popstate", MOVED]) addEventListener(event, moved);
  return () => ["popstate", MOVED].forEach((event) => removeEventListener(event, moved));
}

// A link to a page of the dashboard; a click with a modifier opens it as any link.
export function Link({ to, values, children, ...rest }) {
  const clicked = (event) => {
    if (event.button || event.ctrlKey || event.metaKey || event.shiftKey || event.altKey) return;
    event.preventDefault();
    go(to, values);
  };
  return html`<a href=${addressOf(to, values)} onClick=${clicked} ...${rest}>${children}</a>`;
}
