"""Bugs of the shell around the scheduler: in a module, a piece of text (found exactly once) becomes another one."""

from __future__ import annotations

from tests.scheduling.mutation import Mutant

SHELL = (
    Mutant(
        what="a cancel does not reach the scheduler", module="queue", old="        self.post(inputs.Cancelled(sequence=sequence))\n", new=""
    ),
    Mutant(what="one more than the queue takes", module="queue", old="if waiting >= allowed:", new="if waiting > allowed:"),
    Mutant(
        what="the scheduler hears of no reload",
        module="queue",
        old="        self.post(inputs.PolicyChanged(settings=SchedulerSettings.of(config.settings, self._name_of)))\n",
        new="",
    ),
    Mutant(what="nobody tells the caller", module="dispatching", old="            work.reply.fail(error)\n", new=""),
    Mutant(what="what has ended stays in the register", module="dispatching", old="        self._register.end(work)\n", new=""),
    Mutant(what="nothing is preempted", module="dispatching", old="self._executor.preempt(sequence)", new="pass"),
    Mutant(what="nothing is aborted", module="dispatching", old="self._executor.abort(sequence)", new="pass"),
    Mutant(
        what="nobody hears that the wait is over",
        module="dispatching",
        old="self._give_up(sequence, Outcome.EXPIRED, now, WaitExpired())",
        new="pass",
    ),
    Mutant(what="a failed answer counts as completed", module="dispatching", old="work.status >= 400:", new="work.status >= 600:"),
    Mutant(what="interruptions are not counted", module="dispatching", old="            work.interrupts = entry.interrupts\n", new=""),
    Mutant(what="connections stay open", module="executor", old="if exchange is not None:\n                exchange.close()", new="pass"),
    Mutant(what="an attempt that never ran reports nothing", module="executor", old="if work.reported < attempt:", new="if False:"),
    Mutant(
        what="a truncated stream is whole",
        module="forwarding",
        old="if not ending.complete and not ending.reported_error:",
        new="if False:",
    ),
    Mutant(
        what="a replay is not compared",
        module="forwarding",
        old="self._continue(work, passed)",
        new="self._continue(work, chunk)",
    ),
    Mutant(
        what="what was sent is not remembered",
        module="forwarding",
        old='if work.sent is not None and work.sent.feed(b"".join(chunks)):',
        new="if work.sent is None:",
    ),
    Mutant(
        what="a whole answer is never finished",
        module="forwarding",
        old="        work.reply.push(body)\n        work.reply.finish()\n",
        new="        work.reply.push(body)\n",
    ),
    Mutant(what="an error is not delivered", module="reply", old="            self._error = error\n", new=""),
    Mutant(what="anybody may cancel anything", module="register", old="if caller in {None, owner}]", new="if owner]"),
    Mutant(
        what="a fact is lost in the mailbox",
        module="mailbox",
        old="        while self._facts:\n            self._decide(*self._facts.popleft())\n        self._ready",
        new="        self._decide(*self._facts.popleft())\n        self._facts.clear()\n        self._ready",
    ),
    Mutant(what="a number is used twice", module="intake", old="self._last += 1", new="self._last += 0"),
    Mutant(what="a future that is cancelled goes on", module="in_process", old="    give_up()\n", new=""),
    Mutant(
        what="a load is not verified",
        module="swapper",
        old="        if resident is None:\n            lie = ",
        new="        if False:\n            lie = ",
    ),
    Mutant(what="an unload is not waited for", module="swapper", old="while await self._find(model) is not None:", new="while False:"),
    Mutant(
        what="a failed load says nothing",
        module="swapper",
        old="            self._failed(model, error, LoadFailed(model=model, permanent=permanent))\n",
        new="            self._errors[model] = error\n",
    ),
    Mutant(what="what left the memory is not noticed", module="backend_watch", old="            self._reconcile()\n", new=""),
    Mutant(
        what="nobody hears of the return", module="backend_watch", old="            self._post(BackendUp())\n", new="            pass\n"
    ),
    Mutant(
        what="the total is measured from the start",
        module="chronicle",
        old="total_s=at - work.item.arrived_at,",
        new="total_s=at - (work.dispatched_at or at),",
    ),
    Mutant(
        what="interruptions are counted twice", module="chronicle", old="count = work.interrupts\n", new="count = work.interrupts + 1\n"
    ),
    Mutant(
        what="a restart forgets who was admitted",
        module="gateway",
        old="[(caller, now - (wall_s - accepted)) for caller, accepted in admissions]",
        new="[]",
    ),
    Mutant(
        what="a restart forgets the counts",
        module="observability.records",
        old="counts_since(wall_s - DAY_S)",
        new="counts_since(wall_s + 1.0)",
    ),
    Mutant(
        what="limits are not reloaded",
        module="gateway",
        old="lambda fresh: self.rate_limiter.update_limits(fresh.settings.rate_limits)",
        new="lambda fresh: None",
    ),
    Mutant(what="a reload is not in force", module="reloading", old="        self.config = fresh\n", new=""),
    Mutant(what="the limit is one less", module="rate_limiter", old="self._first < limit:", new="self._first < limit - 1:"),
    Mutant(what="the hour is not counted", module="rate_limiter", old="        self.hour.add(at)\n", new=""),
    Mutant(what="a place is free too early", module="rate_limiter", old="- limit] + self._span_s if", new="- limit] + self._span_s / 2 if"),
    Mutant(
        what="refusals count",
        module="rate_limiter",
        old="        if ledger.free_at() > now:\n",
        new="        if ledger.free_at() > now:\n            ledger.add(now)\n",
    ),
    Mutant(
        what="the house's own work is limited",
        module="admission.gate",
        old="if _is_limited(identity, standing.lane, limiter) and not limiter.check",
        new="if not limiter.check",
    ),
    Mutant(
        what="what is set aside does not count",
        module="admission.budget",
        old="sum(self._accounts[day].of_lane(lane)) + nano",
        new="self._accounts[day].of_lane(lane)[0] + nano",
    ),
    Mutant(what="a caller's own budget is ignored", module="admission.budget", old="if caps.caller is not None and", new="if False and"),
    Mutant(
        what="money stays set aside",
        module="admission.budget",
        old="            account.add(spend, -spend.nano_usd)\n",
        new="            pass\n",
    ),
    Mutant(what="what came before a break is free", module="cloud.metering", old="else self._output_bound(),", new="else 0,"),
    Mutant(
        what="connections to Claude stay open",
        module="cloud.calls",
        old="                await exchange.aclose()\n",
        new="                pass\n",
    ),
    Mutant(what="the books are not closed", module="cloud.desk", old="        self._purse.close(call.reservation, cost)\n", new=""),
    Mutant(
        what="a call starts before its money is on the disk",
        module="cloud.desk",
        old="        await self._purse.record(reservation)\n",
        new="",
    ),
    Mutant(
        what="nothing is ever paid",
        module="cloud.purse",
        old="self._ledger.settle(name, usd(cost)) if cost else self._ledger",
        new="self._ledger",
    ),
    Mutant(
        what="what a dead process spent is free",
        module="storage.ledger",
        old="settled_usd = reserved_usd, closed",
        new="settled_usd = 0.0, closed",
    ),
    Mutant(
        what="a cancelled job goes on",
        module="jobs.feeder",
        old="            run.cancelled = True\n            if run.ticket is not None:",
        new="            run.cancelled = True\n            if False:",
    ),
    Mutant(
        what="a job that comes back is forgotten",
        module="jobs.feeder",
        old="        self._put(replace(job,",
        new="        str(replace(job,",
    ),
    Mutant(
        what="too many jobs at a time",
        module="jobs.feeder",
        old="self._runs.values()) < self._jobs.max",
        new="self._runs.values()) <= self._jobs.max",
    ),
    Mutant(
        what="the end of a job is not kept",
        module="jobs.feeder",
        old="await self._until_written(lambda: self._queue.end(run.job.number, came))",
        new="True",
    ),
    Mutant(
        what="an accepted job is not taken in",
        module="jobs.desk",
        old="            self.take_in(_waiting(new, number=accepted.number, accepted_wall_s=accepted.accepted_wall_s))\n",
        new="            pass\n",
    ),
    Mutant(
        what="a restart overlooks what ran",
        module="storage.jobs",
        old="    orphans = connection.execute(_ORPHANS, (epoch,)).fetchall()\n",
        new="    orphans = []\n",
    ),
    Mutant(
        what="only what was completed is logged",
        module="storage.invocation_log",
        old="        row = self._row(event)\n",
        new="        if event.outcome != Outcome.COMPLETED:\n            return\n        row = self._row(event)\n",
    ),
    Mutant(
        what="a restart forgets interruptions",
        module="observability.windows",
        old='        counts[f"{count.lane.value}_interrupted"] += count.interruptions\n',
        new="",
    ),
    Mutant(what="a pause stays on paper", module="orders", old='self._say("pause", None, inputs.ExternalPaused(paused=True))', new="pass"),
)
