// Numbers and names as people read them. Pure functions; times are seconds since 1970, durations
// seconds.

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

// What has passed of what was expected; the expectation is left out once it is passed.
export function ofExpected(passed, expected) {
  if (!(expected > 0)) return duration(passed);
  return passed < expected
    ? `${duration(passed)} of ~${duration(expected)}`
    : `${duration(passed)}, longer than expected`;
}

export function whole(seconds) {
  return seconds == null
    ? "–"
    : seconds < 99.5
      ? `${Math.max(0, Math.round(seconds))} s`
      : duration(seconds);
}

export function clock(at, withSeconds = true) {
  const options = { hour: "2-digit", minute: "2-digit", hourCycle: "h23" };
  if (withSeconds) options.second = "2-digit";
  return new Date(at * 1000).toLocaleTimeString([], options);
}

// A time of today, or with its weekday, or with its date where a weekday could be another week's.
export function day(at, now, withSeconds = false) {
  const then = new Date(at * 1000);
  if (then.toDateString() === new Date(now * 1000).toDateString()) return clock(at, withSeconds);
  const near = Math.abs(at - now) < 6.5 * 86_400;
  const options = near ? { weekday: "short" } : { month: "short", day: "numeric" };
  return `${then.toLocaleDateString([], options)}${near ? "" : ","} ${clock(at, false)}`;
}

export function count(number) {
  return number == null ? "–" : number.toLocaleString("en");
}

// With few digits, for axes and columns.
export function compact(number) {
  if (number == null) return "–";
  return number.toLocaleString("en", { notation: "compact", maximumFractionDigits: 1 });
}

export function gib(mib) {
  if (mib == null) return "–";
  return mib >= 102_400 ? `${Math.round(mib / 1024)} GiB` : `${(mib / 1024).toFixed(1)} GiB`;
}

export function usd(amount) {
  const number = Number(amount ?? 0);
  return `$${number > 0 && number < 0.1 ? number.toFixed(4) : number.toFixed(2)}`;
}

// What an ended request was run for, as far as is known. An answer that comes as a whole has its
// first byte at its end: unless the model server says how
// long it wrote, or it wrote nothing, reading and answering cannot be told apart.
export function runOf(item) {
  const ran = item.backend_s ?? 0;
  const first = item.first_byte_s ?? ran;
  if (ran - first > 0.05) return { first, write: ran - first, work: 0 };
  if (item.decode_s != null)
    return {
      first: Math.max(0, ran - item.decode_s),
      write: Math.min(ran, item.decode_s),
      work: 0,
    };
  return item.output_tokens ? { first: 0, write: 0, work: ran } : { first: ran, write: 0, work: 0 };
}

// Tokens per second of the answer that an ended request had, null where nothing tells. Of a whole
// answer whose model server does not say how long it wrote,
// the reading is included.
export function tokensPerSecond(item) {
  const { write, work } = runOf(item);
  const wrote = item.decode_s ?? (write || work);
  return item.output_tokens > 1 && wrote > 0.05 ? item.output_tokens / wrote : null;
}

export function rate(perSecond) {
  return perSecond == null
    ? null
    : `${perSecond < 9.95 ? perSecond.toFixed(1) : Math.round(perSecond)} tokens/s`;
}

export function percent(number) {
  return number == null ? "–" : `${number < 9.95 ? number.toFixed(1) : Math.round(number)} %`;
}

// The part of a model's name that tells it apart at a glance.
export function short(model) {
  return model == null ? "any model" : model.replace(/:latest$/, "");
}

const HOLDERS_SHOWN = 3;

// Who has the GPU: what each has said of itself, or what kind of program it is.
export function holders(held, to) {
  const names = [...new Set(held.map((lease) => lease.reason || lease.caller || to))];
  const more = names.length - HOLDERS_SHOWN;
  return more > 0
    ? `${names.slice(0, HOLDERS_SHOWN).join(", ")} and ${more} more`
    : names.join(", ");
}

// What a waiting item waits for, in words. `before`: how many are expected to start earlier.
export function waitsFor(why, before, now) {
  const ahead = before === 0 ? "next" : `${count(before)} before it`;
  return `${reason(why, now)}, ${ahead}`;
}

function left(why, now) {
  return whole(Math.max(0, why.until - now));
}

function reason(why, now) {
  const model = short(why?.model);
  switch (why?.kind) {
    case "swap":
      return `swap to ${model} (${duration(why.cost_s)})`;
    case "load":
      return why.since + why.cost_s - now < 1
        ? `${model} to load`
        : `${model} to load (${whole(why.since + why.cost_s - now)} left)`;
    case "slot":
      return why.parallel > 1
        ? `a slot of ${model} (${why.busy} of ${why.parallel} busy)`
        : `${model} to be free`;
    case "announced":
      return `the announced task ${why.task}, due at ${day(why.until, now)}`;
    case "held":
      return `${model} to be free: held for ${why.caller} for up to ${left(why, now)}`;
    case "others_turn":
      return why.until == null
        ? `the turn of ${model}, which is being loaded`
        : `the turn of ${model} to end, in ${left(why, now)}`;
    case "left_alone":
      return `${model}, which failed to load; next try in ${whole(why.until - now)}`;
    case "refused":
      return `the engine of ${model}, which takes no more; next try in ${left(why, now)}`;
    case "lease":
      return why.until == null
        ? "another program, which has the GPU"
        : `another program, which has the GPU for ${left(why, now)}`;
    case "background":
      return "other programs' requests to go first";
    case "backend_down":
      return "the model server to answer";
    case "paused":
      return "the pause to end";
    case "caller_paused":
      return `${why.caller} to be no longer paused`;
    case "pinned":
      return `GPU memory: ${model} is pinned`;
    case "memory":
      return `memory: other programs use what ${model} needs`;
    case "handing_over":
      return "the emulator's last answers, then Ollama";
    case "stopping":
      return "nothing: Hearth is stopping";
    default:
      return "its turn";
  }
}

// What an ended request waited for, by the kinds of `reason`; `batching` is of embeddings.
const WAITED = {
  swap: "a swap to its model to begin",
  load: "its model to load",
  slot: "its model to be free",
  turn: "its turn",
  others_turn: "the turn of another model",
  held: "a model that was held for another caller",
  announced: "an announced task",
  background: "other programs' requests",
  batching: "others to share its call",
  left_alone: "a model that had failed to load",
  refused: "an engine that took no more",
  pinned: "GPU memory: a model was pinned",
  lease: "another program, which had the GPU",
  memory: "memory that other programs used",
  paused: "the pause to end",
  caller_paused: "the pause of its caller to end",
  backend_down: "the model server to answer",
  handing_over: "the emulator's last answers, then Ollama",
  stopping: "nothing: Hearth was stopping",
};

export function waitedFor(kind) {
  return WAITED[kind] ?? kind.replaceAll("_", " ");
}

// What it waited for, the longest first, without what took no time.
export function waitsOf(item) {
  const known = Object.entries(item.waited_for ?? {}).filter(([, seconds]) => seconds >= 0.05);
  return known.sort((a, b) => b[1] - a[1]);
}

export function startsIn(start, now) {
  if (start == null) return "unknown";
  const left = start - now;
  return left < 1 ? "any moment" : `in ${whole(left)}`;
}

// The bound beside that, which holds in 90 % of cases.
export function startsWithin(bound, now) {
  return `within ${whole(Math.max(1, bound - now))}`;
}

// Per type: what has happened, and what to do about it.
const ALERTS = {
  backend_down: [
    "The model server does not answer",
    "Check that it runs; requests wait, then get 503.",
  ],
  cloud_down: [
    "Claude refuses requests",
    "Check the API key and the account; Hearth tries again in 15 minutes or after a reload.",
  ],
  residency_drifted: [
    "Another program loaded or unloaded a model",
    "Point that program at Hearth instead of the model server.",
  ],
  loop_lag: ["Hearth was blocked for a moment", "Check what else uses the processor or the disk."],
  wrong_keys: [
    "Many requests with a wrong key",
    "Give the program its key, or find out who is trying.",
  ],
  connections: ["An address opens too many connections", "Check the program at that address."],
  internal_fault: ["A defect of Hearth was caught", "Please report it with the log line."],
  starvation: [
    "A request was interrupted again and again",
    "It now runs to its end. Shorten active hours, or raise queue.max_interrupt_count.",
  ],
  budget_exhausted: ["Today's budget is spent", "Raise the budget, or wait until midnight."],
  gpu_swap_frequency: [
    "Many model swaps in the last hour",
    "Use fewer models, or let small ones stay beside large ones.",
  ],
  gpu_swap_latency: ["A model swap took too long", "Check the disk that the models are on."],
  gpu_swap_overhead: [
    "Swaps take much of the GPU's time",
    "Use fewer models, or try another policy with hearth simulate --from-log.",
  ],
  gpu_lost: [
    "The GPU stopped answering",
    "Check its driver; after a driver update, restart the machine.",
  ],
  gpu_hot: ["The GPU is hot", "Check its fans and the air around it."],
  gpu_lease_late: [
    "GPU memory was not freed in time for another program",
    "Look into the model server's log; restart it if a model stays.",
  ],
  queue_depth: ["Many requests are waiting", "See who is waiting below; limit a busy caller."],
  queue_full: ["The queue is full", "Limit the caller, or raise queue.max_external_depth."],
  model_offloaded: [
    "A model runs partly on the CPU",
    "Use a smaller context or quantization, or free GPU memory.",
  ],
  config_rejected: ["The configuration file has mistakes", "Run hearth config check."],
  disk_low: ["The disk is nearly full", "Free some space; jobs are refused when it is full."],
  swap_failed: ["A model could not be loaded", "See the model server's log for the reason."],
  wal_damaged: [
    "A part of the database could not be read",
    "Check the disk, and see docs/storage.md for the copy that was kept.",
  ],
  clock_doubted: [
    "The clock jumped ahead",
    "Confirm the time with POST /llm/admin/confirm-clock, or correct it.",
  ],
  storage_failed: [
    "The log cannot be written",
    "Check the disk; requests go on, jobs are refused.",
  ],
  budget: ["Today's budget is nearly spent", "Raise the budget, or expect refusals."],
  rate_limited: [
    "A caller has reached its rate limit",
    "Raise rate_limits for it, or check the program.",
  ],
  replay_diverged: [
    "An interrupted answer could not be resumed",
    "Its caller got an error; see scheduling.on_divergence.",
  ],
};

export function alertText(type) {
  return ALERTS[type]?.[0] ?? type.replaceAll("_", " ");
}

export function alertAdvice(type) {
  return ALERTS[type]?.[1] ?? "";
}
