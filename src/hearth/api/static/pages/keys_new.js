// A new key: what it may do, and its secret, which is shown once.

import { html, Component } from "../vendor/htm-preact-3.1.1.module.js";
import { Copied, Panel } from "../parts.js";

const KINDS = [
  ["external", "A program", "Its requests wait their turn. The right choice for most."],
  ["assistant", "An assistant", "Somebody talks to it: its requests go before all others."],
  ["internal", "My own automation", "Before other programs, behind the assistant."],
];

const SETTINGS = {
  external: { lane: "external" },
  assistant: { lane: "internal", priority: "critical" },
  internal: { lane: "internal" },
};

const RIGHTS = [
  ["admin", "Admin", "sees and cancels every request, manages models and keys"],
  ["may_lease", "May take the GPU", "gives it to another program for a time"],
  ["may_set_mode", "May switch the mode", "puts a set of your settings in force"],
  ["local_only", "Stays on this machine", "no Claude and no other cloud"],
  ["allow_cloud", "May use Claude", "which costs money"],
];

// `first`: there are no keys yet. `make` takes the body of the request.
export class NewKey extends Component {
  state = { kind: "external", allow_cloud: false };

  componentDidMount() {
    if (!this.props.first) this.form.elements.name.focus();
  }

  submit = (event) => {
    event.preventDefault();
    const { elements } = this.form;
    const body = { name: elements.name.value.trim(), ...SETTINGS[this.state.kind] };
    for (const [right] of RIGHTS) if (elements[right].checked) body[right] = true;
    const models = elements.models.value.split(/[\s,]+/).filter(Boolean);
    if (models.length) body.models = models;
    const { value: amount } = elements.daily_usd;
    if (body.allow_cloud && amount) body.daily_usd = Number(amount);
    this.props.make(body);
  };

  render({ first, close, busy }) {
    const { kind } = this.state;
    const tools = first ? null : html`<button class="small" onClick=${close}>Close</button>`;
    return html`<${Panel} title=${first ? "Make the first key" : "New key"} id="new-key-title"
      className="new-key" tools=${tools}>
      ${first ? html`<${First} />` : null}
      <form ref=${(node) => (this.form = node)} onSubmit=${this.submit} autocomplete="off">
        <label class="field">Name of the program or person
          <input name="name" required maxlength="64" pattern="[A-Za-z0-9][A-Za-z0-9_.\\-]*"
            title="Letters, digits, _ . and -, beginning with a letter or digit"
            spellcheck="false" /></label>
        <label class="field">Only these models (empty: all; * stands for anything)
          <input name="models" spellcheck="false"
            placeholder="llama3*, qwen2.5-coder:14b" /></label>
        <fieldset><legend>What asks with it</legend>
          ${KINDS.map(([value, title, text]) => html`<label key=${value} class="check">
            <input type="radio" name="kind" value=${value} checked=${kind === value}
              onChange=${() => this.setState({ kind: value })} />
            <span><b>${title}</b> <small>${text}</small></span></label>`)}
        </fieldset>
        ${this.rights(first)}
        <div class="buttons left">
          <button type="submit" class="primary" disabled=${busy}>Make the key</button></div>
      </form>
    <//>`;
  }

  rights(first) {
    const { allow_cloud: cloud } = this.state;
    const chosen = (event) => this.setState({ allow_cloud: event.target.checked });
    return html`<fieldset><legend>What it may do beside asking</legend>
        ${RIGHTS.map(([name, title, text]) => html`<label key=${name} class="check">
          <input type="checkbox" name=${name} disabled=${first && name === "admin"}
            checked=${(first && name === "admin") || undefined}
            onChange=${name === "allow_cloud" ? chosen : undefined} />
          <span><b>${title}</b> <small>${text}</small></span></label>`)}
      </fieldset>
      <label class="field" hidden=${!cloud}>US dollars a day for Claude (empty: no limit of its own)
        <input name="daily_usd" type="number" min="0" step="0.01" inputmode="decimal" /></label>`;
  }
}

function First() {
  return html`<p class="muted">Without keys, every program on this machine may use Hearth, and no
    other machine may. From the first key on, every program needs one, this page too: it is signed
    in with the new key at once. So the first one is an admin's.</p>`;
}

// The secret of a key that was just made. It is in no other place.
export class Secret extends Component {
  componentDidMount() {
    this.box.focus();
    this.box.scrollIntoView({ block: "nearest" });
  }

  render({ made, close }) {
    return html`<section class="panel secret" tabindex="-1" aria-labelledby="secret-title"
      ref=${(node) => (this.box = node)}>
      <header><h2 id="secret-title">The key of ${made.name}</h2></header>
      <${Copied} text=${made.key} label=${`the key of ${made.name}`} />
      <p><b>It is shown only now.</b> Hearth keeps its digest and cannot show it again. Copy it, or
        the setting for its program, before you leave this page.</p>
      ${made.lines ? html`<${ByHand} made=${made} />` : null}
      ${made.in_force === false ? html`<${Waiting} made=${made} />` : null}
      <div class="buttons left"><button class="primary" onClick=${close}>I have it</button></div>
    </section>`;
  }
}

// The file could not be edited from here.
function ByHand({ made }) {
  const what = made.lines.startsWith("sha256:")
    ? `this line in place of the sha256 of ${made.name}`
    : "these lines into the file";
  return html`<p class="wrong" role="alert">It is not valid yet: ${made.error}.</p>
    ${made.command
      ? html`<p>Run this on the machine of Hearth as somebody who may write the file; it makes
          another secret:</p><${Copied} text=${made.command} label="the command" block />`
      : null}
    <p>${made.command ? "Or put" : "Put"} ${what}; then this key is valid:</p>
    <${Copied} text=${made.lines} label="the lines for the file" block />`;
}

function Waiting({ made }) {
  const when = made.problems.join(" ") || "It is when the gateway is started again.";
  return html`<p class="wrong" role="alert">It is in ${made.file}, and not in force yet.
    ${` ${when}`}</p>`;
}
