// Durable jobs: how many there are, which waits longest, what failed last.

import { html } from "./vendor/htm-preact-3.1.1.module.js";
import { count, day, startsIn, whole } from "./format.js";
import { Icon } from "./icons.js";
import { Model, Panel } from "./parts.js";

const COUNTS = [
  ["queued", "waiting"],
  ["running", "running"],
  ["completed", "completed"],
  ["failed", "failed"],
  ["cancelled", "cancelled"],
];

// Nothing where there are none.
export function Jobs({ state, now, orders, ask }) {
  const { jobs } = state;
  if (!jobs || !Object.values(jobs.counts).some(Boolean)) return null;
  const failed = Object.entries(jobs.failed).sort((a, b) => b[1].ended - a[1].ended);
  const note = jobs.oldest ? `the oldest has been waiting for ${whole(now - jobs.oldest)}` : "";
  return html`<${Panel} title="Jobs" id="jobs-title" className="jobs" note=${note}>
    <div class="counts-line">
      <dl class="counts">${COUNTS.map(([name, text]) => html`<div key=${name}
        class=${name === "failed" && jobs.counts[name] ? "bad" : ""}>
        <dt>${text}</dt><dd>${count(jobs.counts[name] ?? 0)}</dd></div>`)}</dl>
      <p class="muted small">${offPeak(jobs.off_peak, now)} Ended jobs are counted since the
        start.</p>
    </div>
    <${Open} jobs=${jobs} now=${now} orders=${orders} ask=${ask} />
    ${failed.length
      ? html`<h3>Last failures</h3><ul class="rows">${failed.map(([id, job]) => html`<${Failure}
          key=${id} id=${id} job=${job} now=${now} />`)}</ul>`
      : null}
  <//>`;
}

// Those that run or wait.
function Open({ jobs, now, orders, ask }) {
  const waiting = Object.entries(jobs.waiting).sort((a, b) => a[1].ahead - b[1].ahead);
  const rows = [
    ...Object.entries(jobs.running).map(([id, job]) => [id, job, whereItIs(job)]),
    ...waiting.map(([id, job]) => [id, job, whatHolds(job, jobs.off_peak, now)]),
  ];
  if (!rows.length) return null;
  const more = jobs.counts.queued - waiting.length;
  return html`<ul class="rows" aria-label="Jobs that run or wait">
      ${rows.map(([id, job, what]) => html`<${Row} key=${id} id=${id} job=${job} what=${what}
        now=${now} orders=${orders} ask=${ask} />`)}</ul>
    ${more > 0 ? html`<p class="more">and ${count(more)} more are waiting</p>` : null}`;
}

function offPeak({ now: open, changes }, now) {
  if (changes == null) {
    return open ? "Off-peak jobs may start at any time." : "There are no off-peak hours.";
  }
  const at = day(changes, now);
  return open ? `Off-peak until ${at}.` : `Off-peak begins at ${at}.`;
}

function whereItIs(job) {
  return job.sequence == null ? "starting" : "in the queue or running";
}

// Why a job has not started, and when it should.
function whatHolds(job, { now: open }, now) {
  if (job.not_before > now) {
    return `${job.attempts ? "retried" : "starts"} at ${day(job.not_before, now)} at the earliest`;
  }
  const place = job.ahead ? `${count(job.ahead)} before it` : "next";
  if (job.off_peak && !open) return `waits for off-peak, ${place}`;
  return job.start == null ? place : `${place}, starts ${startsIn(job.start, now)}`;
}

function Who({ id, job }) {
  return html`<b class="caller" title=${id}>${job.caller}</b>
    ${job.task_type ? html`<span class="muted">${job.task_type}</span>` : null}
    <${Model} name=${job.model} />`;
}

function Row({ id, job, what, now, orders, ask }) {
  return html`<li><${Who} id=${id} job=${job} />
    <span class="what muted">${what}
      ${job.attempts
        ? html` <span class="badge warn">${job.attempts}× started</span>`
        : null}</span>
    <span class="number muted" title="since it was accepted">${whole(now - job.accepted)}</span>
    ${ask
      ? html`<button class="icon" title="Cancel" aria-label=${`Cancel ${job.caller}'s job ${id}`}
          onClick=${() => ask(orders.cancelJob(id, job))}><${Icon} name="close" /></button>`
      : null}
  </li>`;
}

function Failure({ id, job, now }) {
  return html`<li><span class="dot bad"></span><${Who} id=${id} job=${job} />
    <span class="what muted">${job.error ?? job.reason}</span>
    <span class="number muted" title=${job.reason}>${day(job.ended, now)}</span></li>`;
}
