// What happens at this moment: who runs, who waits and why, what is loaded, what the GPU does.

import { html, Component } from "../vendor/htm-preact-3.1.1.module.js";
import { Alerts } from "../alerts.js";
import { FirstRun, firstRun } from "../first_run.js";
import { Gateway } from "../gateway.js";
import { Jobs } from "../jobs.js";
import { Memory } from "../memory.js";
import { Recent } from "../recent.js";
import { Running } from "../running.js";
import { Tiles } from "../tiles.js";
import { Timeline } from "../timeline.js";
import { Waiting } from "../waiting.js";

export class Now extends Component {
  state = { grouped: null };

  show = (item) => this.props.go("requests", { id: item.request_id });

  render({ feed, state, now, orders, ask, version }) {
    const shared = { state, now, orders, ask, show: this.show };
    const { asked, shown } = firstRun({ feed, state });
    const setUp = shown
      ? html`<${FirstRun} feed=${feed} state=${state} closed=${() => this.setState({})} />`
      : null;
    return html`<h1 class="hidden">Now</h1>
      <${Tiles} ...${shared} />
      <div class="columns">
        <div class="column main">
          ${asked ? this.work(shared, version) : (setUp ?? this.work(shared, version))}
        </div>
        <div class="column side">
          <${Alerts} ...${shared} />
          ${asked ? setUp : null}
          <${Memory} ...${shared} />
          <${Gateway} ...${shared} />
        </div>
      </div>`;
  }

  work(shared, version) {
    const group = (chosen) => this.setState({ grouped: chosen });
    return html`<${Running} ...${shared} />
      <${Waiting} ...${shared} grouped=${this.state.grouped} group=${group} />
      <${Timeline} ...${shared} version=${version} />
      <${Jobs} ...${shared} />
      <${Recent} ...${shared} />`;
  }
}
