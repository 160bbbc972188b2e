// The last hour: one lane per model with memory, work and swaps, and below it how many waited.
// Drawn by uPlot, on canvases.

import { h, Component } from "./vendor/htm-preact-3.1.1.module.js";
import { shadeOf, themeColour } from "./colours.js";
import { clock, count, duration, short } from "./format.js";
import { drawGaps, hatch, plotStyle, watchPlot } from "./series.js";

const uPlot = globalThis.uPlot;
const STEP_S = 10; // As the gateway counts depths.
const MINUTE_S = 60;
const LANES_PX = 132; // Fixed, whatever the number of models, so that nothing below moves.
const AXIS_PX = 46;
const DEPTH_PX = 84;
const PHONE_PX = 640;
const SYNC = "hearth";

// Spans by model, in the order in which models were first seen.
function lanesOf(timeline, residents, from) {
  const lanes = new Map();
  for (const span of Object.values(timeline.spans)) {
    if (span[3] != null && span[3] < from) continue;
    if (!lanes.has(span[0])) lanes.set(span[0], []);
    lanes.get(span[0]).push(span);
  }
  for (const model of Object.keys(residents)) if (!lanes.has(model)) lanes.set(model, []);
  return [...lanes].filter(([model]) => model !== "");
}

// What is open ends now; what began before the window begins with it. Intervals that overlap count
// once.
function covered(spans, from, now) {
  let total = 0;
  let reached = from;
  for (const [, , began, ended = now] of [...spans].sort((a, b) => a[2] - b[2])) {
    const start = Math.max(began, reached);
    if (ended > start) {
      total += ended - start;
      reached = ended;
    }
  }
  return total;
}

export function summary(state, now, span) {
  const from = now - span;
  const all = Object.values(state.timeline.spans).filter((one) => (one[3] ?? now) > from);
  const busy = covered(
    all.filter((one) => one[1] === "busy"),
    from,
    now,
  );
  const swaps = all.filter((one) => one[1] === "swap");
  return {
    busy,
    swapping: covered(swaps, from, now),
    swaps: swaps.length,
    cut: all.filter((one) => one[1] === "cut").length,
    failed: all.filter((one) => one[1] === "failed").length,
    interruptions: Object.values(state.timeline.marks).filter((mark) => mark[0] > from).length,
  };
}

// Where the recorded past begins, if it is shorter than the window.
export function recordedSince(state, now) {
  return Math.min(now, ...Object.values(state.timeline.spans).map((span) => span[2]));
}

function depthSeries(timeline, from, now) {
  const steps = Object.values(timeline.depths).sort((a, b) => a[0] - b[0]);
  const times = [from];
  const internal = [0];
  const total = [0];
  let last = [0, 0];
  const add = (at, house, all) => {
    times.push(at);
    internal.push(house);
    total.push(all);
  };
  steps.forEach(([at, mostInternal, mostExternal, lastInternal, lastExternal], index) => {
    last = [lastInternal, lastInternal + lastExternal];
    const end = at + STEP_S;
    if (end <= from) {
      [internal[0], total[0]] = last;
      return;
    }
    add(Math.max(at, from), mostInternal, mostInternal + mostExternal);
    const next = steps[index + 1]?.[0] ?? Infinity;
    if (next > end + 1 && end < now) add(end, ...last);
  });
  times.push(Math.max(now, times.at(-1)));
  internal.push(last[0]);
  total.push(last[1]);
  return withGaps([times, total, internal], timeline.gaps ?? [], from);
}

// Nothing is drawn where nothing is known: before a start, and between two.
function withGaps(series, gaps, from) {
  for (const [began, ended] of gaps) {
    if (ended <= from) continue;
    const times = series[0];
    const first = times.findIndex((at) => at >= began);
    const next = times.findIndex((at) => at >= ended);
    const [at, until] = [first < 0 ? times.length : first, next < 0 ? times.length : next];
    const start = Math.max(began, from);
    series = series.map((values, index) => [
      ...values.slice(0, at),
      ...(index ? [null, 0] : [start, Math.max(ended, start)]),
      ...values.slice(until),
    ]);
  }
  return series;
}

export class Charts extends Component {
  shouldComponentUpdate() {
    return false; // The canvases are uPlot's; `componentWillReceiveProps` hands them what is new.
  }

  render() {
    return h("div", { class: "charts" }, [
      h("div", { class: "lanes", ref: (node) => (this.laneNode = node) }),
      h("div", { class: "depth", ref: (node) => (this.depthNode = node) }),
      h(
        "p",
        { class: "readout", "aria-hidden": "true", ref: (node) => (this.readout = node) },
        this.hint,
      ),
    ]);
  }

  get hint() {
    return "Hover or tap to read a moment.";
  }

  componentDidMount() {
    this.unwatch = watchPlot(
      this.laneNode,
      () => this.rebuild(),
      () => this.resize(),
    );
    this.update(this.props);
  }

  componentWillUnmount() {
    this.unwatch();
    this.destroy();
  }

  componentWillReceiveProps(next) {
    if (
      next.version !== this.drawn ||
      next.span !== this.props.span ||
      next.now - this.drawnAt >= 5
    )
      this.update(next);
  }

  destroy() {
    this.lanes?.destroy();
    this.depth?.destroy();
    this.lanes = this.depth = null;
  }

  rebuild() {
    this.destroy();
    this.update(this.props);
  }

  resize() {
    const width = this.laneNode.clientWidth;
    if (!width || !this.lanes || width === this.lanes.width) return;
    this.lanes.setSize({ width, height: this.laneHeight() });
    this.depth.setSize({ width, height: this.high(DEPTH_PX) });
  }

  // The wall draws everything larger on a larger screen.
  scaled(pixels) {
    return Math.round(pixels * (this.props.scale ?? 1));
  }

  // A phone has less room.
  high(pixels) {
    return this.scaled(innerWidth > PHONE_PX ? pixels : 0.75 * pixels);
  }

  laneHeight() {
    return this.high(LANES_PX + AXIS_PX - 16);
  }

  update({ state, now, span, version }) {
    this.drawn = version;
    this.drawnAt = now;
    const from = now - span;
    const before = this.model?.lanes.length;
    this.model = {
      lanes: lanesOf(state.timeline, state.residents, from),
      marks: Object.values(state.timeline.marks),
      gaps: (state.timeline.gaps ?? []).filter((gap) => gap[1] > from),
      from,
      now,
    };
    this.depths = depthSeries(state.timeline, from, now);
    if (this.lanes && before !== this.model.lanes.length) this.destroy();
    if (!this.lanes) this.build();
    this.lanes.setData([
      [from, now],
      [null, null],
    ]);
    this.depth.setData(this.depths);
  }

  build() {
    const width = this.laneNode.clientWidth || 600;
    this.lanes = new uPlot(
      this.laneOptions(width),
      [
        [this.model.from, this.model.now],
        [null, null],
      ],
      this.laneNode,
    );
    this.depth = new uPlot(this.depthOptions(width), this.depths, this.depthNode);
  }

  labelWidth(width) {
    return width < 520 ? 92 : this.scaled(this.props.scale ? 230 : 168);
  }

  common(width) {
    return {
      width,
      legend: { show: false },
      cursor: {
        sync: { key: SYNC },
        y: false,
        drag: { x: false, y: false },
        points: { show: false },
      },
      padding: [4, 22, 0, 0],
    };
  }

  get style() {
    return plotStyle((pixels) => this.scaled(pixels), this.props.scale ? 17 : 11);
  }

  timeScale() {
    return { time: true, range: () => [this.model.from, this.model.now] };
  }

  timeAxis() {
    return {
      ...this.style,
      size: this.scaled(22),
      space: this.scaled(70),
      // Whole minutes: a label never stands twice.
      incrs: [1, 2, 5, 10, 15, 20, 30].map((minutes) => minutes * MINUTE_S),
      values: (_, splits) => splits.map((at) => clock(at, false)),
    };
  }

  laneOptions(width) {
    const shared = this.common(width);
    const lanes = () => this.model.lanes;
    return {
      ...shared,
      height: this.laneHeight(),
      scales: { x: this.timeScale(), y: { range: () => [0, Math.max(1, lanes().length)] } },
      series: [{}, { show: true, points: { show: false } }],
      axes: [
        this.timeAxis(),
        {
          ...this.style,
          grid: { show: false },
          size: this.labelWidth(width),
          splits: () => lanes().map((_, index) => lanes().length - index - 0.5),
          values: () => lanes().map(([model]) => ellipsis(short(model), width < 520 ? 12 : 24)),
        },
      ],
      hooks: { draw: [(plot) => this.drawLanes(plot)], setCursor: [(plot) => this.read(plot)] },
    };
  }

  depthOptions(width) {
    const shared = this.common(width);
    const stepped = uPlot.paths.stepped({ align: 1 });
    return {
      ...shared,
      height: this.high(DEPTH_PX),
      padding: [this.scaled(10), 22, 0, 0],
      scales: {
        x: this.timeScale(),
        y: { range: (_, __, most) => [0, Math.max(4, Math.ceil((most ?? 0) * 1.1))] },
      },
      series: [
        {},
        {
          stroke: themeColour("--external"),
          fill: themeColour("--external-fill"),
          width: 1.5,
          paths: stepped,
          points: { show: false },
        },
        {
          stroke: themeColour("--internal"),
          fill: themeColour("--internal-fill"),
          width: 1.5,
          paths: stepped,
          points: { show: false },
        },
      ],
      axes: [
        { ...this.timeAxis(), size: this.scaled(6), values: () => [] },
        {
          ...this.style,
          size: this.labelWidth(width),
          space: this.scaled(18),
          incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000],
          values: (_, splits) => splits.map(count),
        },
      ],
      hooks: {
        drawClear: [(plot) => drawGaps(plot, this.model.gaps)],
        setCursor: [(plot) => this.read(plot)],
      },
    };
  }

  drawLanes(plot) {
    const { ctx, bbox } = plot;
    const ratio = devicePixelRatio;
    const rows = this.model.lanes.length;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    drawGaps(plot, this.model.gaps);
    this.model.lanes.forEach(([model, spans], index) => {
      const top = plot.valToPos(rows - index, "y", true);
      const height = plot.valToPos(rows - index - 1, "y", true) - top;
      const shade = themeColour(`--shade-${shadeOf(model)}`);
      const order = ["resident", "swap", "cut", "failed", "busy"];
      for (const kind of order) {
        for (const span of spans)
          if (span[1] === kind) this.drawSpan(plot, span, top, height, shade, ratio);
      }
      for (const mark of this.model.marks)
        if (mark[1] === model) this.drawMark(plot, mark, top, height, ratio);
    });
    ctx.restore();
  }

  drawSpan(plot, [, kind, began, ended], top, height, shade, ratio) {
    const { ctx } = plot;
    const x = plot.valToPos(Math.max(began, this.model.from), "x", true);
    const width = Math.max(1.5 * ratio, plot.valToPos(ended ?? this.model.now, "x", true) - x);
    const inset = height * (kind === "resident" ? 0.41 : 0.16);
    if (kind === "swap" || kind === "cut" || kind === "failed") {
      ctx.fillStyle = hatch(ctx, themeColour(kind === "failed" ? "--bad" : "--swap"), ratio);
    } else {
      ctx.fillStyle = shade;
    }
    ctx.fillRect(x, top + inset, width, height - 2 * inset);
  }

  drawMark(plot, [at], top, height, ratio) {
    const { ctx } = plot;
    const x = plot.valToPos(at, "x", true);
    const size = 4 * ratio;
    ctx.fillStyle = themeColour("--bad");
    ctx.strokeStyle = themeColour("--panel");
    ctx.lineWidth = ratio;
    ctx.beginPath();
    ctx.moveTo(x - size, top + 1);
    ctx.lineTo(x + size, top + 1);
    ctx.lineTo(x, top + 1 + 1.7 * size);
    ctx.closePath();
    ctx.fill();
    ctx.stroke();
    ctx.fillRect(x - ratio / 2, top + 1, ratio, height - 2);
  }

  read(plot) {
    const left = plot.cursor.left;
    if (left == null || left < 0) {
      this.readout.textContent = this.hint;
      return;
    }
    const at = plot.posToVal(left, "x");
    if (this.model.gaps.some(([began, ended]) => began <= at && at < ended)) {
      this.readout.textContent = `${clock(at)}  Hearth was not running, or nothing was recorded.`;
      return;
    }
    const parts = this.model.lanes
      .map(([model, spans]) => atMoment(model, spans, at, this.model.now))
      .filter(Boolean);
    const mark = this.model.marks.find(
      (one) => Math.abs(one[0] - at) < (this.model.now - this.model.from) / 250,
    );
    if (mark) parts.unshift(`${mark[2]} was interrupted`);
    const [times, total] = this.depths;
    let index = times.findIndex((time) => time > at);
    index = index < 0 ? times.length - 1 : Math.max(0, index - 1);
    const loaded = parts.join(" · ") || "no model loaded";
    this.readout.textContent = `${clock(at)}  ${loaded} · ${count(total[index])} waiting`;
  }
}

function atMoment(model, spans, at, now) {
  const here = spans.filter((span) => span[2] <= at && at <= (span[3] ?? now));
  const of = (kind) => here.find((span) => span[1] === kind);
  const swap = of("swap");
  if (swap) return `${short(model)} loading (${duration((swap[3] ?? now) - swap[2])})`;
  if (of("cut")) return `load of ${short(model)} cut for internal work`;
  if (of("failed")) return `${short(model)} failed to load`;
  if (of("busy")) return `${short(model)} busy`;
  return of("resident") ? `${short(model)} idle` : "";
}

function ellipsis(text, length) {
  return text.length <= length ? text : `${text.slice(0, length - 1)}…`;
}
