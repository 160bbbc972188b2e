// Numbers and names as people read them. Pure functions; times are seconds since 1970, durations seconds.

export function duration(seconds) {
  if (seconds == null || !Number.isFinite(seconds)) return "–";
  const s = Math.max(0, seconds);
  if (s < 9.95) return `${s.toFixed(1)} s`;
  if (s < 99.5) return `${Math.round(s)} s`;
  const minutes = Math.floor(s / 60);
  if (minutes < 60) return `${minutes} min ${String(Math.floor(s % 60)).padStart(2, "0")} s`;
  const hours = Math.floor(minutes / 60);
  if (hours < 48) return `${hours} h ${String(minutes % 60).padStart(2, "0")} min`;
  return `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

export function whole(seconds) {
  return seconds == null ? "–" : seconds < 99.5 ? `${Math.max(0, Math.round(seconds))} s` : duration(seconds);
}

export function clock(at, withSeconds = true) {
  const options = { hour: "2-digit", minute: "2-digit", hourCycle: "h23" };
  if (withSeconds) options.second = "2-digit";
  return new Date(at * 1000).toLocaleTimeString([], options);
}

// A time of today, or with its weekday, or with its date where a weekday could be another week's.
export function day(at, now) {
  const then = new Date(at * 1000);
  if (then.toDateString() === new Date(now * 1000).toDateString()) return clock(at, false);
  const near = Math.abs(at - now) < 6.5 * 86_400;
  return `${then.toLocaleDateString([], near ? { weekday: "short" } : { month: "short", day: "numeric" })}${near ? "" : ","} ${clock(at, false)}`;
}

export function count(number) {
  return number == null ? "–" : number.toLocaleString("en");
}

export function gib(mib) {
  if (mib == null) return "–";
  return mib >= 102_400 ? `${Math.round(mib / 1024)} GiB` : `${(mib / 1024).toFixed(1)} GiB`;
}

export function usd(amount) {
  const number = Number(amount ?? 0);
  return `$${number > 0 && number < 0.1 ? number.toFixed(4) : number.toFixed(2)}`;
}

export function percent(number) {
  return number == null ? "–" : `${number < 9.95 ? number.toFixed(1) : Math.round(number)} %`;
}

// The part of a model's name that tells it apart at a glance.
export function short(model) {
  return model == null ? "any model" : model.replace(/:latest$/, "");
}

// What a waiting item waits for, in words. `before`: how many are expected to start earlier.
export function waitsFor(why, before, now) {
  const ahead = before === 0 ? "next" : `${count(before)} before it`;
  return `${reason(why, now)}, ${ahead}`;
}

function reason(why, now) {
  const model = short(why?.model);
  switch (why?.kind) {
    case "swap":
      return `swap to ${model} (${duration(why.cost_s)})`;
    case "load":
      return `${model} to load (${whole(Math.max(0, why.since + why.cost_s - now))} left)`;
    case "slot":
      return why.parallel > 1 ? `a slot of ${model} (${why.busy} of ${why.parallel} busy)` : `${model} to be free`;
    case "announced":
      return `${why.task}, due at ${day(why.until, now)}`;
    case "left_alone":
      return `${model}, which did not load; next try in ${whole(why.until - now)}`;
    case "backend_down":
      return "the model server to answer";
    case "paused":
      return "the pause to end";
    case "pinned":
      return `room: ${model} is pinned`;
    case "stopping":
      return "nothing: Hearth is stopping";
    default:
      return "its turn";
  }
}

export function startsIn(start, now) {
  if (start == null) return "unknown";
  const left = start - now;
  return left < 1 ? "any moment" : `in ${whole(left)}`;
}

const ALERTS = {
  backend_down: "The model server does not answer",
  cloud_down: "Claude takes no work from this house",
  residency_drifted: "Models came or went without Hearth",
  loop_lag: "Hearth itself was held up",
  wrong_keys: "Wrong keys come from an address",
  connections: "An address wants too many connections",
  internal_fault: "A defect in Hearth was caught",
  starvation: "A request was interrupted again and again",
  budget_exhausted: "The day's budget is spent",
  gpu_swap_frequency: "Too many swaps in the last hour",
  gpu_swap_latency: "The last swap took too long",
  gpu_swap_overhead: "Swapping takes too much of the GPU's time",
  gpu_lost: "The GPU has stopped answering",
  gpu_hot: "The GPU is hot",
  queue_depth: "Many requests wait",
  queue_full: "The queue is full",
  model_offloaded: "Runs in part on the CPU",
  config_rejected: "The configuration file has mistakes",
  disk_low: "The disk is nearly full",
  swap_failed: "A model could not be loaded",
  clock_doubted: "The clock has jumped",
  storage_failed: "The log cannot be written",
  budget: "The day's budget is nearly spent",
  rate_limited: "A caller runs into its limit",
};

export function alertText(type) {
  return ALERTS[type] ?? type.replaceAll("_", " ");
}
