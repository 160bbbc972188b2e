// The last hour of the GPU: its summary in words, the legend, and the charts.

import { html, Component } from "./vendor/htm-preact-3.1.1.module.js";
import { Charts, recordedSince, summary } from "./charts.js";
import { duration, whole } from "./format.js";
import { listen } from "./help.js";
import { Panel } from "./parts.js";

const SPANS = [[600, "10 min"], [1800, "30 min"], [3600, "1 h"]];

export class Timeline extends Component {
  state = { span: null };

  componentDidMount() {
    const span = (index) => () => this.setState({ span: SPANS[index][0] });
    this.deaf = this.props.wall ? () => {} : listen({ 1: span(0), 2: span(1), 3: span(2) });
  }

  componentWillUnmount() {
    this.deaf();
  }

  render({ state, now, version, wall, scale }) {
    const span = this.state.span ?? fitting(now - recordedSince(state, now));
    const note = noteOf(summary(state, now, span));
    const tools = html`<${Legend} state=${state} now=${now} span=${span} />
      ${wall
        ? null
        : html`<span class="segmented" role="group" aria-label="Time shown">
            ${SPANS.map(([seconds, text]) => html`<button key=${seconds}
              aria-pressed=${String(span === seconds)}
              onClick=${() => this.setState({ span: seconds })}>${text}</button>`)}</span>`}`;
    return html`<${Panel} title="GPU timeline" id="hour-title" note=${note} tools=${tools}
      className="hour">
      <div role="img" aria-label=${`The last ${whole(span)}: ${note}`}>
        <${Charts} state=${state} now=${now} span=${span} version=${version} scale=${scale} />
      </div>
    <//>`;
  }
}

// The shortest window that holds what is known.
function fitting(known) {
  return (SPANS.find(([seconds]) => known <= seconds) ?? SPANS.at(-1))[0];
}

function noteOf({ busy, swaps, swapping, cut, failed, interruptions }) {
  const loads = `${swaps} ${swaps === 1 ? "load" : "loads"} in ${duration(swapping)}`;
  const parts = [`busy ${duration(busy)}`, loads];
  if (cut) parts.push(`${cut} cut`);
  if (failed) parts.push(`${failed} failed`);
  if (interruptions) parts.push(`${interruptions} interrupted`);
  return parts.join(" · ");
}

function Legend({ state, now, span }) {
  const gaps = (state.timeline.gaps ?? []).some((gap) => gap[1] > now - span);
  const keys = [
    ["busy", "busy"],
    ["idle", "idle"],
    ["swap", "loading"],
    ...(gaps ? [["gap", "not recorded"]] : []),
    ["mark", "interrupted"],
    ["external", "external waiting"],
    ["internal", "internal waiting"],
  ];
  return html`<span class="legend" aria-hidden="true">
    ${keys.map(([name, text]) => html`<span key=${name}>
      <i class=${`key ${name}`}></i>${text}</span>`)}
  </span>`;
}
