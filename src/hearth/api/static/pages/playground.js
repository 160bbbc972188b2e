// A prompt for a model, sent like any program sends it: its place in the queue, a swap, the answer as it streams, and its speed.

import { html, Component } from "../vendor/htm-preact-3.1.1.module.js";
import { BASE } from "../base.js";
import { errorText } from "../feed.js";
import { duration, ofExpected, rate, short } from "../format.js";
import { Panel } from "../parts.js";

export class Playground extends Component {
  constructor(props) {
    super(props);
    const models = Object.values(props.state.models).filter((model) => model.installed && !model.name.includes("embed"));
    this.models = models.map((model) => model.name).sort();
    const { loaded_model: loaded, home_model: home } = props.state.gpu;
    this.state = { model: [loaded, home].find((name) => this.models.includes(name)) ?? this.models[0] ?? "", answer: "", note: "", running: false };
  }

  componentWillUnmount() {
    this.abort?.abort();
  }

  send = async (event) => {
    event.preventDefault();
    const prompt = this.prompt.value.trim();
    if (!prompt || this.state.running) return;
    this.abort = new AbortController();
    this.setState({ running: true, answer: "", note: "Sent." });
    try {
      await this.ask(prompt);
    } catch {
      this.setState({ note: this.abort.signal.aborted ? "Stopped." : "Hearth does not answer." });
    }
    this.setState({ running: false });
  };

  async ask(prompt) {
    const { feed } = this.props;
    const began = performance.now();
    const body = JSON.stringify({ model: this.state.model, messages: [{ role: "user", content: prompt }] });
    const response = await fetch(`${BASE}/api/chat`, {
      method: "POST", body, headers: { "content-type": "application/json", ...feed.headers }, signal: this.abort.signal, cache: "no-store",
    });
    if (!response.ok) return this.setState({ note: await errorText(response) });
    const position = Number(response.headers.get("x-queue-position") ?? 0);
    this.setState({ note: position ? `${position} ahead when it was accepted.` : "Accepted." });
    let buffered = "";
    let first = 0;
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return undefined;
      buffered += value;
      const lines = buffered.split("\n");
      buffered = lines.pop();
      for (const part of lines.filter(Boolean).map((line) => JSON.parse(line))) {
        if (part.error) return this.setState({ note: part.error }); // the connection breaks off after it
        first = this.take(part, began, first);
      }
    }
  }

  take(part, began, first) {
    const text = (part.message?.thinking ?? "") + (part.message?.content ?? "");
    const begun = first || (text ? performance.now() : 0);
    if (part.done) this.setState({ note: finished(part, began, begun) });
    if (text) this.setState(({ answer }) => ({ answer: answer + text, ...(first ? {} : { note: `First word after ${duration((begun - began) / 1000)}.` }) }));
    return begun;
  }

  render({ state, now }) {
    const { swap } = state.gpu;
    const waits = this.state.running && !this.state.answer && swap?.to ? ` Loading ${short(swap.to)} for ${ofExpected(now - swap.since, swap.cost_s)}.` : "";
    return html`<h1 class="hidden">Playground</h1><${Panel} title="Playground" id="playground-title" className="playground"><form onSubmit=${this.send}>
      <label>Model <select value=${this.state.model} onChange=${(event) => this.setState({ model: event.target.value })}>
        ${this.models.map((name) => html`<option key=${name} value=${name}>${short(name)}</option>`)}</select></label>
      <label>Prompt <textarea rows="3" ref=${(node) => (this.prompt = node)} onKeyDown=${(event) => event.key === "Enter" && (event.ctrlKey || event.metaKey) && this.send(event)}></textarea></label>
      <div class="buttons"><span class="muted grow" role="status">${this.state.note}${waits}</span>
        ${this.state.running ? html`<button type="button" onClick=${() => this.abort.abort()}>Stop</button>` : null}
        <button type="submit" class="primary" disabled=${this.state.running}>Send</button></div>
      <output class="answer">${this.state.answer}</output></form><//>`;
  }
}

function finished(part, began, first) {
  const speed = part.eval_count && part.eval_duration ? part.eval_count / (part.eval_duration / 1e9) : null;
  const whole = `${duration((performance.now() - began) / 1000)} in total, first word after ${duration((first - began) / 1000)}`;
  return `${whole}${part.eval_count ? `, ${part.eval_count} tokens` : ""}${speed ? `, ${rate(speed)}` : ""}.`;
}
