// The address and the setting to paste for each kind of program.

import { html, Component } from "../vendor/htm-preact-3.1.1.module.js";
import { BASE } from "../base.js";
import { Copied, Panel } from "../parts.js";
import { PROGRAMS, suggested } from "../programs.js";

const LOCAL = ["localhost", "127.0.0.1", "[::1]"];
const PLACE_OF_KEY = "hearth_...";

// As this browser reaches the gateway, below the path of a proxy.
const ADDRESS = location.origin + BASE;

export class Connect extends Component {
  state = { model: "" };

  render({ state, chosen, choose, keyed, secret }) {
    const program = PROGRAMS.find((each) => each.name === chosen) ?? PROGRAMS[0];
    const model = this.state.model || suggested(state.models, program.coding) || "MODEL";
    const key = keyed ? (secret?.key ?? PLACE_OF_KEY) : "none";
    const blocks = program.blocks({ address: ADDRESS, key, model, keyed });
    return html`<${Panel} title="Connect a program" id="connect-title" className="connect">
      <div class="choices">
        <${Choice} id="program" label="Program" chosen=${program.name} choose=${choose}
          options=${PROGRAMS.map(({ name, title }) => [name, title])} />
        ${program.named ? this.models(state.models, model) : null}
      </div>
      ${blocks.map((block) => html`<${Block} key=${block.where} ...${block} />`)}
      <${Notes} keyed=${keyed} secret=${secret} />
    <//>`;
  }

  models(models, chosen) {
    const names = Object.values(models).filter((model) => model.installed).map(({ name }) => name);
    const offered = names.includes(chosen) ? names : [chosen, ...names];
    const options = offered.map((name) => [name, name]);
    return html`<${Choice} id="model" label="Model" chosen=${chosen} options=${options}
      choose=${(model) => this.setState({ model })} />`;
  }
}

function Choice({ id, label, chosen, choose, options }) {
  return html`<div><label for=${id}>${label}</label>
    <select id=${id} onChange=${(event) => choose(event.target.value)}>
      ${options.map(([value, text]) => html`<option key=${value} value=${value}
        selected=${value === chosen}>${text}</option>`)}
    </select></div>`;
}

function Block({ where, fields, lines }) {
  return html`<div class="block">
    <h3>${where}</h3>
    ${lines
      ? html`<${Copied} text=${lines} label=${`the lines for ${where}`} block />`
      : html`<dl class="pairs">${fields.map(([name, value]) => html`<div key=${name}>
          <dt>${name}</dt><dd><${Copied} text=${value} label=${name} /></dd></div>`)}</dl>`}
  </div>`;
}

function Notes({ keyed, secret }) {
  const here = LOCAL.includes(location.hostname);
  let aboutKey = "No keys are configured: any text will do as the key.";
  if (keyed) aboutKey = `Put the program's own key in place of ${PLACE_OF_KEY}`;
  if (secret) aboutKey = `The key of ${secret.name} is in it.`;
  return html`<p class="muted">${aboutKey}</p>
    ${here
      ? html`<p class="muted">This address is for programs on this machine. For others, set${" "}
          <code>server.host</code>, and open this page by the name that they use.</p>`
      : null}`;
}
