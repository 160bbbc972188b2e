// What the page can do, each after a question. Nothing here is possible that the key does not
// allow anyway.

import { html, Component } from "./vendor/htm-preact-3.1.1.module.js";
import { BASE } from "./base.js";
import { errorText } from "./feed.js";
import { holders, short } from "./format.js";

const YIELD_S = [
  [1800, "30 minutes"],
  [3600, "1 hour"],
  [7200, "2 hours"],
  [14_400, "4 hours"],
  [28_800, "8 hours"],
  [86_400, "24 hours"],
];

export class Orders {
  constructor(feed, say) {
    this._feed = feed;
    this.say = say;
  }

  async send(method, path, body) {
    const headers = { "content-type": "application/json", ...this._feed.headers };
    let response;
    try {
      response = await fetch(BASE + path, {
        method,
        headers,
        body: body == null ? undefined : JSON.stringify(body),
        cache: "no-store",
      });
    } catch {
      return { error: "Hearth does not answer" };
    }
    if (!response.ok) {
      const refusal = await response
        .clone()
        .json()
        .catch(() => ({}));
      return { error: await errorText(response), refusal };
    }
    try {
      return { answer: await response.json() };
    } catch {
      return { answer: {} };
    }
  }

  async run(path, body, done, method = "POST") {
    const { answer, error } = await this.send(method, path, body);
    this.say(error ? { bad: true, text: error } : { text: done(answer) });
  }

  cancel(item) {
    const then = item.dispatched
      ? "is running; its answer will be cut off"
      : "will leave the queue";
    return {
      title: "Cancel this request?",
      text: `${item.caller}'s request ${item.request_id} ${then}.`,
      label: "Cancel the request",
      bad: true,
      run: () =>
        this.run(`/llm/queue/item/${item.sequence}/cancel`, {}, (answer) =>
          answer.cancelled
            ? `${item.request_id} is cancelled.`
            : `${item.request_id} had already finished.`,
        ),
    };
  }

  reload() {
    return {
      title: "Read the configuration again?",
      text:
        "The file is checked first. If it has mistakes, nothing changes and they are " +
        "listed here.",
      label: "Reload",
      run: () =>
        this.run(
          "/llm/admin/reload",
          {},
          (answer) => `Configuration ${answer.generation} is in force.`,
        ),
    };
  }

  // To none for null.
  setMode(mode) {
    return this.run("/llm/mode", { mode }, (answer) =>
      answer.mode ? `The mode ${answer.mode} is in force.` : "No mode is in force.",
    );
  }

  mode(name) {
    return {
      title: name ? `Switch to ${name}?` : "End the mode?",
      text:
        `${name ? "Its settings" : "The settings outside of modes"} are in force at ` +
        `once. Requests that wait or run stay.`,
      label: name ? "Switch" : "End",
      run: () => this.setMode(name),
    };
  }

  preempt() {
    return {
      title: "Interrupt external requests?",
      text:
        "Running external requests that can be resumed stop now and return to the front " +
        "of their queue.",
      label: "Interrupt",
      run: () =>
        this.run("/llm/admin/preempt", {}, ({ preempted }) =>
          preempted
            ? `${preempted} running ${preempted === 1 ? "request is" : "requests are"} being` +
              " interrupted."
            : "No running request can be interrupted.",
        ),
    };
  }

  testAlerts() {
    return {
      title: "Send a test message?",
      text: "Every alert target in the configuration gets one.",
      label: "Send",
      run: () =>
        this.run("/llm/admin/alert/test", {}, ({ targets }) =>
          targets
            .map((each) => `${each.target}: ${each.delivered ? "delivered" : each.answer}`)
            .join(", "),
        ),
    };
  }

  cancelJob(id, job) {
    return {
      title: "Cancel this job?",
      text: `${job.caller}'s job ${id} will end as cancelled and will not run again.`,
      label: "Cancel the job",
      bad: true,
      run: () =>
        this.run(
          `/llm/jobs/${encodeURIComponent(id)}`,
          null,
          (answer) =>
            answer.cancelled ? `${id} is cancelled.` : `${id} had already ended: ${answer.state}.`,
          "DELETE",
        ),
    };
  }

  drain() {
    return {
      title: "Drain?",
      text:
        "New requests are refused with 503 until you resume. Waiting and running " +
        "requests finish; jobs are accepted and kept.",
      label: "Drain",
      bad: true,
      run: () => this.run("/llm/admin/drain", {}, () => "Draining."),
    };
  }

  pause() {
    return {
      title: "Pause external requests?",
      text: "They are accepted and wait until you resume. Internal requests go on.",
      label: "Pause",
      run: () => this.run("/llm/admin/pause", {}, () => "External requests are paused."),
    };
  }

  resume() {
    return {
      title: "Resume?",
      text: "Ends a drain and a pause: new requests are accepted, and waiting ones may start.",
      label: "Resume",
      run: () => this.run("/llm/admin/resume", {}, () => "Resumed."),
    };
  }

  yieldGpu() {
    return {
      title: "Yield the GPU?",
      text:
        "All of its memory is freed for another program: models are unloaded, and " +
        "requests wait. Answers that are interrupted go on afterwards.",
      label: "Yield",
      choice: { label: "For", options: YIELD_S, chosen: 7200 },
      // With an id of its own, so that a second time is a renewal.
      run: (seconds) =>
        this.run(
          "/llm/gpu/leases",
          { id: "dashboard", for_s: Number(seconds), reason: "a program of yours" },
          () => "The GPU is being freed.",
        ),
    };
  }

  takeBack({ held, to }) {
    return {
      title: "Take the GPU back?",
      text:
        `Models are loaded again, whether or not ${holders(held, to)} still runs. A game ` +
        `that has no memory left may end.`,
      label: "Take it back",
      bad: true,
      run: () => this.run("/llm/gpu/leases", null, () => "Models may use the GPU again.", "DELETE"),
    };
  }

  pin(name) {
    return {
      title: `Pin ${short(name)}?`,
      text:
        "It becomes the home model, and no external request can unload it until it is " +
        "unpinned. Internal requests can.",
      label: "Pin",
      run: () => this.run("/llm/admin/pin", { model: name }, () => `${short(name)} is pinned.`),
    };
  }

  unpin(name) {
    return {
      title: `Unpin ${short(name)}?`,
      text: "External requests may unload it again.",
      label: "Unpin",
      run: () => this.run("/llm/admin/unpin", {}, () => `${short(name)} is no longer pinned.`),
    };
  }

  unload(name) {
    return {
      title: `Unload ${short(name)}?`,
      text: "It is removed from GPU memory, unless a request runs on it or waits for it.",
      label: "Unload",
      run: () =>
        this.run("/llm/admin/unload", { model: name }, () => `${short(name)} is being unloaded.`),
    };
  }

  load(name) {
    return {
      title: `Load ${short(name)}?`,
      text:
        "It is loaded once nothing more urgent is in the way; another model may be " +
        "unloaded for it.",
      label: "Load",
      run: () =>
        this.run("/llm/admin/load", { model: name }, () => `${short(name)} was requested.`),
    };
  }

  // What any caller may do: request the model, as a request without a prompt does.
  request(name) {
    const [path, body] = name.includes("embed")
      ? ["/api/embed", { model: name, input: "" }]
      : ["/api/generate", { model: name, stream: false }];
    return {
      title: `Load ${short(name)}?`,
      text:
        "It is requested like any request: it waits its turn, and another model may be " +
        "unloaded for it.",
      label: "Load",
      run: () => {
        this.say({ text: `${short(name)} was requested.` });
        return this.run(path, body, () => `${short(name)} is loaded.`);
      },
    };
  }
}

// The question before a command. The dialog element brings focus, Escape and the backdrop.
export class Question extends Component {
  componentDidMount() {
    this.asked = document.activeElement;
    this.dialog.showModal();
  }

  componentWillUnmount() {
    this.dialog.close(); // Gives the focus back; merely taken out of the page it would not.
    // A request that has begun to run meanwhile has another row, with a button of the same name.
    const label = this.asked?.getAttribute("aria-label");
    if (label && !this.asked.isConnected)
      document.querySelector(`[aria-label="${CSS.escape(label)}"]`)?.focus();
  }

  render({ question, close }) {
    const { choice } = question;
    const confirm = (event) => {
      event.preventDefault();
      const chosen = this.select?.value;
      close();
      question.run(chosen);
    };
    return html`<dialog ref=${(node) => (this.dialog = node)} onClose=${close}
      aria-labelledby="question-title">
      <form onSubmit=${confirm}>
        <h2 id="question-title">${question.title}</h2>
        <p>${question.text}</p>
        ${choice
          ? html`<label class="choice">${choice.label}
              <${Choice} choice=${choice} held=${(node) => (this.select = node)} /></label>`
          : null}
        <div class="buttons">
          <button type="button" class="quiet" onClick=${close}>Cancel</button>
          <button type="submit" class=${question.bad ? "danger" : "primary"}>
            ${question.label}</button>
        </div>
      </form>
    </dialog>`;
  }
}

function Choice({ choice, held }) {
  return html`<select ref=${held}>${choice.options.map(([value, text]) => html`<option
    key=${value} value=${value} selected=${value === choice.chosen}>${text}</option>`)}</select>`;
}
