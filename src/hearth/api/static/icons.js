// An icon beside a word, or in a button that has a label of its own; screen readers skip it.

import { html } from "./vendor/htm-preact-3.1.1.module.js";
import { PATHS } from "./icon_paths.js";

export function Icon({ name }) {
  return html`<svg class="svg-icon" viewBox="0 0 24 24" aria-hidden="true" focusable="false">
    <path d=${PATHS[name]} />
  </svg>`;
}
