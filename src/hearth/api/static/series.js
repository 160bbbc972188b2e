// Every time series of the dashboard: steps on a canvas by uPlot, with axes, a readout that follows
// pointer and arrow keys, hatched gaps where nothing is known, and a zoom.

import { html, Component } from "./vendor/htm-preact-3.1.1.module.js";
import { themeColour } from "./colours.js";
import { clock } from "./format.js";

const uPlot = globalThis.uPlot;
const DAY_S = 86_400;
const AXIS_PX = 62;

// How axes look in the present theme; `scaled` is for screens that are read from afar.
export function plotStyle(scaled = (pixels) => pixels, font = 11) {
  return {
    stroke: themeColour("--ink-soft"),
    font: `${scaled(font)}px system-ui, sans-serif`,
    grid: { stroke: themeColour("--line"), width: 1 },
    ticks: { show: false },
  };
}

// Calls `redraw` when the theme changes and `resize` when the node does. Returns what ends that.
export function watchPlot(node, redraw, resize) {
  const scheme = matchMedia("(prefers-color-scheme: dark)");
  const observer = new ResizeObserver(resize);
  scheme.addEventListener("change", redraw);
  addEventListener("hearth-theme", redraw);
  observer.observe(node);
  return () => {
    scheme.removeEventListener("change", redraw);
    removeEventListener("hearth-theme", redraw);
    observer.disconnect();
  };
}

// Slanted lines in a colour: what is not there, or not yet.
export function hatch(ctx, colour, ratio) {
  const size = Math.round(6 * ratio);
  const tile = document.createElement("canvas");
  tile.width = tile.height = size;
  const pen = tile.getContext("2d");
  pen.fillStyle = colour;
  pen.globalAlpha = 0.35;
  pen.fillRect(0, 0, size, size);
  pen.globalAlpha = 1;
  pen.strokeStyle = colour;
  pen.lineWidth = 1.6 * ratio;
  for (const shift of [-size, 0, size]) {
    pen.beginPath();
    pen.moveTo(shift, size);
    pen.lineTo(shift + size, 0);
    pen.stroke();
  }
  return ctx.createPattern(tile, "repeat");
}

// From and until in seconds, within what the plot shows.
export function drawGaps(plot, gaps) {
  const { ctx, bbox } = plot;
  const ratio = devicePixelRatio;
  const { min, max } = plot.scales.x;
  ctx.save();
  ctx.fillStyle = hatch(ctx, themeColour("--line"), ratio);
  for (const [began, ended] of gaps) {
    if (ended <= min || began >= max) continue;
    const left = plot.valToPos(Math.max(began, min), "x", true);
    const right = plot.valToPos(Math.min(ended, max), "x", true);
    ctx.fillRect(left, bbox.top, Math.max(ratio, right - left), bbox.height);
  }
  ctx.restore();
}

// Each value stands for a step that begins at its time: two points, so that a line is level in
// between. A step without a value breaks the line.
function stepped(times, step, lines) {
  const points = times.flatMap((at) => [at, at + step * 0.999]);
  return [points, ...lines.map((values) => values.flatMap((value) => [value, value]))];
}

// The lowest line last, since each is filled down to zero.
function stacked(lines) {
  const sums = [];
  lines.forEach(({ values }, index) => {
    const below = sums[index - 1];
    sums.push(values.map((value, at) => (value == null ? null : value + (below?.[at] ?? 0))));
  });
  return sums.reverse();
}

// Props: `title`; `times` in seconds, each the begin of a step of `step` seconds; `lines`, each
// `{ name, colour, values }` with null for what is not known; `stack` to draw them on top of each
// other; `text` makes words of a value, `tick` those of the axis; `gaps`, from and until each;
// `zoom`, from and until, or null; `zoomed` is told of a new one; `sync`, a name that plots share
// whose cursors move together.
export class Series extends Component {
  // Its canvas is redrawn for new data only: the page around it counts seconds.
  shouldComponentUpdate(next) {
    return ["times", "lines", "zoom", "title"].some((name) => next[name] !== this.props[name]);
  }

  componentDidMount() {
    this.unwatch = watchPlot(this.node, () => this.draw(), () => this.resize());
    this.draw();
  }

  componentDidUpdate() {
    this.draw();
  }

  componentWillUnmount() {
    this.unwatch();
    this.plot?.destroy();
  }

  draw() {
    this.plot?.destroy();
    const { times, step, lines, stack } = this.props;
    const values = stack ? stacked(lines) : lines.map((line) => line.values);
    this.plot = new uPlot(this.options(), stepped(times, step, values), this.node);
    this.read(null);
  }

  resize() {
    const { clientWidth: width, clientHeight: height } = this.node;
    if (this.plot && width && (width !== this.plot.width || height !== this.plot.height)) {
      this.plot.setSize({ width, height });
    }
  }

  get window() {
    const { times, step, zoom } = this.props;
    return zoom ?? [times[0], times.at(-1) + step];
  }

  options() {
    const { sync, zoomed } = this.props;
    return {
      width: this.node.clientWidth || 600,
      height: this.node.clientHeight || 180,
      padding: [8, 10, 0, 0],
      legend: { show: false },
      cursor: {
        y: false,
        points: { show: false },
        sync: sync ? { key: sync } : undefined,
        drag: { x: Boolean(zoomed), y: false, setScale: false },
        bind: { dblclick: () => () => zoomed?.(null) },
      },
      scales: {
        x: { time: true, range: () => this.window },
        y: { range: (_, __, most) => [0, most > 0 ? most * 1.08 : 1] },
      },
      series: [{}, ...this.strokes()],
      axes: [timeAxis(), this.valueAxis()],
      hooks: {
        drawClear: [(plot) => drawGaps(plot, this.props.gaps ?? [])],
        setCursor: [(plot) => this.read(plot.cursor.left >= 0 ? plot : null)],
        setSelect: [(plot) => this.select(plot)],
      },
    };
  }

  strokes() {
    const { lines, stack } = this.props;
    const drawn = stack ? [...lines].reverse() : lines;
    return drawn.map(({ colour, dash }) => {
      const stroke = themeColour(colour);
      const fill = stack ? stroke : lines.length === 1 ? `${stroke}2e` : undefined;
      return { stroke, fill, dash, width: stack ? 0 : 1.75, points: { show: false } };
    });
  }

  valueAxis() {
    const { tick, text } = this.props;
    const values = (_, splits) => splits.map((value) => (tick ?? text)(value));
    return { ...plotStyle(), size: AXIS_PX, space: 28, values };
  }

  select(plot) {
    const { left, width } = plot.select;
    if (width < 4) return;
    const { times, step, zoomed } = this.props;
    const [from, until] = [left, left + width].map((at) => plot.posToVal(at, "x"));
    plot.setSelect({ left: 0, top: 0, width: 0, height: 0 }, false);
    const within = [Math.max(from, times[0]), Math.min(until, times.at(-1) + step)];
    if (within[1] - within[0] >= step) zoomed(within);
  }

  // What stands beside the title: the step under the cursor, or a sentence on all of them.
  read(plot) {
    const { times, step } = this.props;
    const at = plot ? plot.posToVal(plot.cursor.left, "x") : null;
    this.index = at == null ? null : Math.floor((at - times[0]) / step);
    this.readout.textContent = this.wordsOf(this.index);
  }

  wordsOf(index) {
    const { times, step, lines, text } = this.props;
    if (index == null || !(index in times)) return this.summary();
    const known = lines.filter(({ values }) => values[index] != null);
    if (!known.length) return `${spanText(times[index], step)}: not known`;
    const few = lines.length < 4;
    const shown = known.filter(({ values }) => few || values[index] > 0);
    if (!few) shown.sort((a, b) => b.values[index] - a.values[index]);
    const parts = shown.map(({ name, values }) => `${name} ${text(values[index])}`.trim());
    return `${spanText(times[index], step)}: ${parts.join(" · ") || text(0)}`;
  }

  // The highest value: of all lines together where they are stacked.
  summary() {
    const { lines, stack, text } = this.props;
    const drawn = stack ? stacked(lines).slice(0, 1) : lines.map(({ values }) => values);
    const known = drawn.flat().filter((value) => value != null);
    if (!known.length) return "nothing is known";
    return `up to ${text(known.reduce((a, b) => Math.max(a, b)))}`;
  }

  // With the keyboard: step by step, to the ends, and out of a zoom.
  key = (event) => {
    const { times, step, zoomed } = this.props;
    const from = this.index ?? times.length;
    const last = times.length - 1;
    const to = { ArrowLeft: from - 1, ArrowRight: from + 1, Home: 0, End: last }[event.key];
    if (event.key === "Escape" && this.props.zoom) zoomed?.(null);
    if (to == null) return;
    event.preventDefault();
    const index = Math.min(last, Math.max(0, to));
    this.readout.ariaLive = "polite";
    const left = this.plot.valToPos(times[index] + step / 2, "x");
    this.plot.setCursor({ left, top: 0 }, true, true);
  };

  render({ title, lines }) {
    const label = `${title} over time. ${this.summary()}. Arrow keys read single values.`;
    return html`<figure class="series">
      <figcaption><b>${title}</b>
        <span class="readout" ref=${(node) => (this.readout = node)}></span></figcaption>
      <div class="plot" role="group" aria-roledescription="chart" aria-label=${label} tabindex="0"
        onKeyDown=${this.key} ref=${(node) => (this.node = node)}></div>
      ${lines.length > 1
        ? html`<ul class="series-keys">${lines.map(({ name, colour }) => html`<li key=${name}>
            <i style=${{ background: `var(${colour})` }}></i>${name}</li>`)}</ul>`
        : null}
    </figure>`;
  }
}

function timeAxis() {
  const values = (_, splits, __, ___, apart) => splits.map((at) => tickText(at, apart));
  return { ...plotStyle(), size: 24, space: 64, values };
}

function tickText(at, apart) {
  const then = new Date(at * 1000);
  const midnight = then.getHours() === 0 && then.getMinutes() === 0;
  if (apart < DAY_S && !midnight) return clock(at, false);
  return then.toLocaleDateString([], { month: "short", day: "numeric" });
}

// A step of time, at most a day long.
function spanText(at, step) {
  const format = { weekday: "short", month: "short", day: "numeric" };
  const date = new Date(at * 1000).toLocaleDateString([], format);
  return `${date}, ${clock(at, false)} to ${clock(at + step, false)}`;
}
