// Pulling a model: the field that asks for its name, and how far one is.

import { html } from "../vendor/htm-preact-3.1.1.module.js";
import { duration, short } from "../format.js";
import { Icon } from "../icons.js";
import { progressOf, pulls } from "../pulls.js";

const MIB = 1024 * 1024;
const SUCH_AS = { ollama: "llama3.2:3b", lmstudio: "qwen/qwen3-4b-2507" };
const LEFT = "cancelled; what has come is kept for the next time";
const NOT_ENDED = "no longer shown here; LM Studio goes on with it";

export function PullForm({ engine, feed }) {
  if (!engine.can_pull) {
    return html`<p class="muted small install">To add a model: ${engine.how_to_install}</p>`;
  }
  const id = `pull-${engine.name}`;
  const start = (event) => {
    event.preventDefault();
    const input = event.target.elements.name;
    const name = input.value.trim();
    const known = pulls.all.some((pull) => pull.name === name && !pull.over);
    if (!name || known) return;
    pulls.start(feed, name, engine);
    input.value = "";
  };
  return html`<form class="pull-form" onSubmit=${start}>
    <label class="hidden" for=${id}>Model to pull</label>
    <input id=${id} name="name" required autocomplete="off" autocapitalize="off" spellcheck="false"
      placeholder=${`A model to pull, such as ${SUCH_AS[engine.kind] ?? SUCH_AS.ollama}`}
      disabled=${!engine.up} />
    <button type="submit" disabled=${!engine.up}><${Icon} name="download" /> Pull</button>
  </form>`;
}

export function Pull({ pull }) {
  const { total, completed } = progressOf(pull);
  const part = pull.done ? 1 : total ? completed / total : 0;
  const name = short(pull.name);
  const percent = Math.floor(part * 100);
  return html`<div class="pull">
    <p class="pull-line"><b>${name}</b><span class="grow muted">${stateOf(pull)}</span>
      ${pull.over
        ? html`<button class="icon" aria-label=${`Close the pull of ${name}`}
            onClick=${() => pulls.forget(pull)}><${Icon} name="close" /></button>`
        : html`<button class="small" aria-label=${`Cancel the pull of ${name}`}
            onClick=${() => pulls.stop(pull)}>Cancel</button>`}</p>
    ${pull.over && !pull.done
      ? null
      : html`<span class="progress" role="progressbar" aria-label=${`Pull of ${name}`}
          aria-valuemin="0" aria-valuemax="100" aria-valuenow=${percent}>
          <i style=${{ width: `${part * 100}%` }}></i></span>`}
    ${pull.problem ? html`<p class="wrong" role="alert">${pull.problem}</p>` : null}
    <span class="hidden" role="status">${pull.done ? `${name} was pulled.` : ""}</span>
  </div>`;
}

function stateOf(pull) {
  const { total, completed, speed, left } = progressOf(pull);
  if (pull.done) return `pulled${total ? `, ${bytes(total)}` : ""}`;
  if (pull.stopped) return pull.kind === "lmstudio" ? NOT_ENDED : LEFT;
  if (pull.problem) return "failed";
  if (!total) return pull.status;
  const facts = [
    `${bytes(completed)} of ${bytes(total)}`,
    speed > 0 ? `${bytes(speed)}/s` : "",
    left == null || completed >= total ? "" : `${duration(left)} left`,
    completed >= total ? pull.status : "",
  ];
  return facts.filter(Boolean).join(" · ");
}

export function bytes(number) {
  const mib = number / MIB;
  if (mib >= 1024) return `${(mib / 1024).toFixed(1)} GiB`;
  return mib >= 10 ? `${Math.round(mib)} MiB` : `${mib.toFixed(1)} MiB`;
}
