// What a new home needs, each item ticked by what happens. It goes once everything is done, or when
// it is closed.

import { html, Component } from "./vendor/htm-preact-3.1.1.module.js";
import { BASE } from "./base.js";
import { short } from "./format.js";
import { Icon } from "./icons.js";
import { Copied, Panel } from "./parts.js";
import { Link } from "./router.js";

// "asked": a request has been seen; "closed": it is not shown any more.
const KEY = `hearth.first-run${BASE}`;

export class FirstRun extends Component {
  close = () => {
    remember("closed");
    this.props.closed();
  };

  render(props) {
    const items = itemsOf(props);
    const left = items.filter((item) => !item.done).length;
    const tools = html`<button class="small" onClick=${this.close}>Hide</button>`;
    return html`<${Panel} title="Set up Hearth" id="first-run-title" className="first-run"
      note=${`${items.length - left} of ${items.length} done`} tools=${tools}>
      <ol class="steps">${items.map((item) => html`<${Step} key=${item.title} ...${item} />`)}</ol>
    <//>`;
  }
}

// Whether it is to be shown, and whether anything was ever asked of this gateway.
export function firstRun({ feed, state }) {
  const memory = remembered();
  const asked = memory.includes("asked") || wasAsked(state);
  if (asked && !memory.includes("asked")) remember("asked");
  const open = state.you.admin && !memory.includes("closed");
  return { asked, shown: open && itemsOf({ feed, state }).some((item) => !item.done) };
}

function wasAsked({ running, waiting, recent, house: { stats } }) {
  const ended = (stats.internal_completed ?? 0) + (stats.external_completed ?? 0);
  const rows = [running, waiting.rows, recent].some((each) => Object.keys(each).length);
  return rows || ended > 0;
}

function itemsOf({ feed, state }) {
  const { gpu, house, models } = state;
  const installed = Object.values(models).filter((model) => model.installed).length;
  const targets = house.alerts?.targets ?? [];
  return [
    {
      title: "Point a program at Hearth",
      done: remembered().includes("asked") || wasAsked(state),
      text: html`Where it asks for the address of Ollama, give it${" "}
        <${Copied} text=${location.origin + BASE} />${" "}The page${" "}
        <${Link} to="keys">Keys<//> has the setting for each kind of program, and${" "}
        <${Link} to="playground">Playground<//> needs no program at all.`,
    },
    {
      title: "Have a model",
      done: installed > 0,
      text: installed
        ? `${installed} ${installed === 1 ? "model is" : "models are"} installed.`
        : html`None is installed. Pull one on the page${" "}<${Link} to="models">Models<//>.`,
    },
    {
      title: "Make a key",
      done: Boolean(feed.key),
      text: feed.key
        ? "Programs sign in with keys."
        : html`Without keys, only programs on this machine may ask. Make one on the page${" "}
            <${Link} to="keys">Keys<//>, an admin key first.`,
    },
    {
      title: "Choose the home model",
      done: Boolean(gpu.home_model),
      text: gpu.home_model
        ? `${short(gpu.home_model)} is loaded again whenever nothing else is wanted.`
        : html`It is loaded whenever nothing else is wanted, so that your assistant finds it
            ready. Set${" "}            <code>gpu.home_model</code>${" "}in the configuration.`,
    },
    {
      title: "Be told when something is off",
      done: targets.length > 0,
      text: targets.length
        ? `Alerts go to ${targets.map((target) => target.name).join(", ")}.`
        : html`Set${" "}<code>alerts.discord_webhook_url</code>${" "}in the configuration. Without
            it, alerts             are shown here and written to the log.`,
    },
  ];
}

function Step({ title, done, text }) {
  return html`<li class=${done ? "done" : ""}>
    <${Icon} name=${done ? "check-circle" : "circle-outline"} />
    <div><b>${title}</b><span class="hidden">${done ? " (done)" : " (to do)"}</span>
      <p class="muted">${text}</p></div>
  </li>`;
}

function remembered() {
  try {
    return (localStorage.getItem(KEY) ?? "").split(" ");
  } catch {
    return [];
  }
}

function remember(word) {
  try {
    localStorage.setItem(KEY, [...remembered(), word].filter(Boolean).join(" "));
  } catch {
    // Storage is off: it is known until the page is closed.
  }
}
