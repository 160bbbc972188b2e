// What the page can order, each after a question. Nothing here is possible that the key does not allow anyway.

import { html, Component } from "./vendor/htm-preact-3.1.1.module.js";
import { errorText } from "./feed.js";
import { short } from "./format.js";

export class Orders {
  constructor(feed, say) {
    this._feed = feed;
    this._say = say;
  }

  async send(method, path, body) {
    const headers = { "content-type": "application/json", ...this._feed.headers };
    let response;
    try {
      response = await fetch(path, { method, headers, body: method === "POST" ? JSON.stringify(body) : undefined, cache: "no-store" });
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

  async run(path, body, done, method = "POST") {
    const { answer, error } = await this.send(method, path, body);
    this._say(error ? { bad: true, text: error } : { text: done(answer) });
  }

  cancel(item) {
    return {
      title: "Cancel this request?",
      text: `${item.caller}'s request ${item.request_id} ${item.dispatched ? "is running; its answer breaks off" : "leaves the queue"}.`,
      label: "Cancel the request",
      bad: true,
      run: () =>
        this.run(`/llm/queue/item/${item.sequence}/cancel`, {}, (answer) =>
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

  cancelJob(id, job) {
    return {
      title: "Cancel this job?",
      text: `${job.caller}'s job ${id} ends as cancelled and is not done again.`,
      label: "Cancel the job",
      bad: true,
      run: () =>
        this.run(`/llm/jobs/${encodeURIComponent(id)}`, null, (answer) => (answer.cancelled ? `${id} is cancelled.` : `${id} had ended: ${answer.state}.`), "DELETE"),
    };
  }

  drain() {
    return {
      title: "Drain?",
      text: "New requests are refused with 503 until you resume. What waits and runs is finished; jobs are taken and kept.",
      label: "Drain",
      bad: true,
      run: () => this.run("/llm/admin/drain", {}, () => "Draining."),
    };
  }

  pause() {
    return {
      title: "Pause other programs?",
      text: "Their requests are taken and wait until you resume. The house's own work goes on.",
      label: "Pause them",
      run: () => this.run("/llm/admin/pause", {}, () => "Other programs are paused."),
    };
  }

  resume() {
    return {
      title: "Resume?",
      text: "A drain and a pause end; new requests are taken, and what waits may start.",
      label: "Resume",
      run: () => this.run("/llm/admin/resume", {}, () => "Work goes on."),
    };
  }

  pin(name) {
    return {
      title: `Pin ${short(name)}?`,
      text: "It is the model to come back to, and no other program's request takes it out of memory until it is unpinned. The house's own work may.",
      label: "Pin",
      run: () => this.run("/llm/admin/pin", { model: name }, () => `${short(name)} is pinned.`),
    };
  }

  unpin(name) {
    return {
      title: `Unpin ${short(name)}?`,
      text: "Requests of other programs may take it out of memory again.",
      label: "Unpin",
      run: () => this.run("/llm/admin/unpin", {}, () => `${short(name)} is not pinned any more.`),
    };
  }

  unload(name) {
    return {
      title: `Unload ${short(name)}?`,
      text: "It leaves the GPU's memory, unless something runs on it or waits for it.",
      label: "Unload",
      run: () => this.run("/llm/admin/unload", { model: name }, () => `${short(name)} leaves memory.`),
    };
  }

  load(name) {
    return {
      title: `Load ${short(name)}?`,
      text: "It comes in as soon as nothing more urgent prevents it; another model may have to leave for it.",
      label: "Load",
      run: () => this.run("/llm/admin/load", { model: name }, () => `${short(name)} is asked for.`),
    };
  }

  // What any caller may do: ask for the model as a request without a prompt does.
  request(name) {
    const [path, body] = name.includes("embed") ? ["/api/embed", { model: name, input: "" }] : ["/api/generate", { model: name, stream: false }];
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
    this.asked = document.activeElement;
    this.dialog.showModal();
  }

  componentWillUnmount() {
    this.dialog.close(); // Gives the focus back; merely taken out of the page it would not.
    // A request that has begun to run meanwhile has another row, with a button of the same name.
    const label = this.asked?.getAttribute("aria-label");
    if (label && !this.asked.isConnected) document.querySelector(`[aria-label="${CSS.escape(label)}"]`)?.focus();
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
