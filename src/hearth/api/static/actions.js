// What the page can order, each after a question. Nothing here is possible that the key does not allow anyway.

import { html, Component } from "./vendor/htm-preact-3.1.1.module.js";
import { errorText } from "./feed.js";
import { short } from "./format.js";

export class Orders {
  constructor(feed, say) {
    this._feed = feed;
    this._say = say;
  }

  async post(path, body) {
    const headers = { "content-type": "application/json", ...this._feed.headers };
    let response;
    try {
      response = await fetch(path, { method: "POST", headers, body: JSON.stringify(body ?? {}), cache: "no-store" });
    } catch {
      return { error: "Hearth does not answer" };
    }
    if (!response.ok) return { error: await errorText(response) };
    try {
      return { answer: await response.json() };
    } catch {
      return { answer: {} };
    }
  }

  async run(path, body, done) {
    const { answer, error } = await this.post(path, body);
    this._say(error ? { bad: true, text: error } : { text: done(answer) });
  }

  cancel(item) {
    return {
      title: "Cancel this request?",
      text: `${item.caller}'s request ${item.request_id} ${item.dispatched ? "is running; its answer breaks off" : "leaves the queue"}.`,
      label: "Cancel the request",
      bad: true,
      run: () =>
        this.run(`/llm/requests/${encodeURIComponent(item.request_id)}/cancel`, {}, (answer) =>
          answer.cancelled ? `${item.request_id} is cancelled.` : `${item.request_id} was complete already.`,
        ),
    };
  }

  reload() {
    return {
      title: "Read the configuration again?",
      text: "The file is checked first. If it has mistakes, nothing changes and they are listed here.",
      label: "Reload",
      run: () => this.run("/llm/admin/reload", {}, (answer) => `Configuration ${answer.generation} is in force.`),
    };
  }

  preempt() {
    return {
      title: "Make room on the GPU?",
      text: "Running requests of other programs that can be resumed unnoticed stop now and go back to the front of their queue.",
      label: "Make room",
      run: () =>
        this.run("/llm/admin/preempt", {}, ({ preempted }) =>
          preempted ? `${preempted} running ${preempted === 1 ? "request makes" : "requests make"} room.` : "Nothing runs that could make room.",
        ),
    };
  }

  testAlerts() {
    return {
      title: "Send a test message?",
      text: "Every place that the configuration names for alerts gets one.",
      label: "Send it",
      run: () =>
        this.run("/llm/admin/alert/test", {}, ({ targets }) =>
          targets.map((each) => `${each.target}: ${each.delivered ? "arrived" : each.answer}`).join(", "),
        ),
    };
  }

  load(name, embeds) {
    const [path, body] = embeds
      ? ["/api/embed", { model: name, input: "" }]
      : ["/api/generate", { model: name, stream: false }];
    return {
      title: `Load ${short(name)}?`,
      text: "It is asked for like any request: it waits its turn, and another model may have to leave for it.",
      label: "Load",
      run: () => {
        this._say({ text: `${short(name)} is asked for.` });
        return this.run(path, body, () => `${short(name)} is in memory.`);
      },
    };
  }
}

// The question before an order. The dialog element brings focus, Escape and the backdrop.
export class Question extends Component {
  componentDidMount() {
    this.dialog.showModal();
  }

  render({ question, close }) {
    const confirm = (event) => {
      event.preventDefault();
      close();
      question.run();
    };
    return html`<dialog ref=${(node) => (this.dialog = node)} onClose=${close} aria-labelledby="question-title">
      <form onSubmit=${confirm}>
        <h2 id="question-title">${question.title}</h2>
        <p>${question.text}</p>
        <div class="buttons">
          <button type="button" class="quiet" onClick=${close}>Back</button>
          <button type="submit" class=${question.bad ? "danger" : "primary"}>${question.label}</button>
        </div>
      </form>
    </dialog>`;
  }
}
