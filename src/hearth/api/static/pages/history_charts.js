// What the charts of the history show: lines of the whole, or of each caller, model or engine.

import { shadeOf } from "../colours.js";
import { compact, count, duration, percent, rate, short } from "../format.js";

const SHADES = 8;
const OTHERS = "--stroke";

const COUNTED = { text: count, tick: compact, stack: true };
const CHARTS = [
  { title: "Requests", field: "requests", ...COUNTED, whole: requestLines },
  { title: "Wait, 95th percentile", field: "wait_p95_s", text: duration, whole: waitLines },
  { title: "Answer tokens", field: "output_tokens", ...COUNTED },
  { title: "Tokens a second", field: "tokens_per_s", text: speed, tick: compact },
  { title: "Swaps", field: "swaps", ...COUNTED, ofModels: true },
  { title: "Swaps, share of the GPU's time", field: "swap_share", text: share, ofModels: true },
  { title: "Energy", field: "energy_wh", text: energyText, ofGpu: true },
];

// As `Series` takes them. Energy is left out where nothing was measured.
export function chartsOf(found) {
  const { buckets, group } = found;
  const times = buckets.map((bucket) => bucket.start_wall_s);
  const names = group ? namesOf(found.groups, group) : [];
  const isMeasured = buckets.some((bucket) => bucket.energy_wh != null);
  return CHARTS.filter(({ ofGpu }) => !ofGpu || isMeasured).map((chart) => {
    const { title, field, text, tick, stack = false, whole, ofModels, ofGpu } = chart;
    const grouped = group && !ofGpu && !(ofModels && group === "caller");
    const lines = grouped
      ? names.map((named, index) => ({ ...named, values: found.groups[index][field] }))
      : (whole ?? oneLine)(found, field);
    const gaps = gapsOf(found, ofGpu ? field : "requests");
    return { title, text, tick, stack, times, step: found.bucket_s, lines, gaps };
  });
}

// A model keeps the colour that it has everywhere, unless another one of the chart has it.
function namesOf(groups, group) {
  const taken = new Set();
  return groups.map(({ [group]: value, is_others: isOthers }) => {
    if (isOthers) return { name: "others", colour: OTHERS };
    let shade = group === "model" && value != null ? shadeOf(value) : 0;
    for (let tries = 0; taken.has(shade) && tries < SHADES; tries += 1) {
      shade = (shade + 1) % SHADES;
    }
    taken.add(shade);
    return { name: value == null ? "none" : short(value), colour: `--shade-${shade}` };
  });
}

function oneLine(found, field) {
  return [{ name: "", colour: "--external", values: valuesOf(found, field) }];
}

function requestLines(found) {
  const done = found.buckets.map(({ requests, failed }) =>
    requests == null ? null : requests - failed,
  );
  return [
    { name: "failed", colour: "--bad", values: valuesOf(found, "failed") },
    { name: "completed or cancelled", colour: "--external", values: done },
  ];
}

function waitLines(found) {
  return [
    { name: "95 %", colour: "--external", values: valuesOf(found, "wait_p95_s") },
    { name: "median", colour: "--internal", values: valuesOf(found, "wait_p50_s") },
  ];
}

function valuesOf(found, field) {
  return found.buckets.map((bucket) => bucket[field]);
}

// Where nothing is known; what is next to each other as one.
function gapsOf({ buckets, bucket_s }, field) {
  const gaps = [];
  for (const { start_wall_s: at, [field]: value } of buckets) {
    if (value != null) continue;
    if (gaps.at(-1)?.[1] === at) gaps.at(-1)[1] = at + bucket_s;
    else gaps.push([at, at + bucket_s]);
  }
  return gaps;
}

function speed(value) {
  return rate(value) ?? "–";
}

function share(value) {
  return value == null ? "–" : percent(value * 100);
}

export function energyText(wh) {
  if (wh == null) return "–";
  if (wh < 999.5) return `${wh.toFixed(wh < 99.5 ? 1 : 0)} Wh`;
  return `${(wh / 1000).toFixed(wh < 99_950 ? 2 : 1)} kWh`;
}
