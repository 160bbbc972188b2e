"""Bugs of what only some houses have: embeddings, batches, webhooks, orders, and somebody else at the model server."""

from __future__ import annotations

from tests.scheduling.mutation import Mutant

SHOWS_LATE = {
    "attempts before a parting do not count": 600,
    "a drain holds back what was gathered": 250,
    "a cancel that the disk had taken all the same stops nothing": 300,
    "what failed for all is not asked one by one": 400,
    "a request whose cancel the disk had taken all the same outlives its batch": 300,
}
"""By bug: the house from which on to look for it, where that is rare."""
MORE = (
    Mutant(
        what="the first of several gets everybody's answer",
        module="accumulating.accumulator",
        old="zip(batch.asked, parts, strict=True)",
        new="zip(reversed(batch.asked), parts, strict=True)",
    ),
    Mutant(
        what="a call for several goes on when all have left",
        module="accumulating.accumulator",
        old="            self._worker.cancel(batch.sequence)\n            return\n",
        new="            return\n",
    ),
    Mutant(
        what="one who leaves takes the others along",
        module="accumulating.accumulator",
        old="        if not batch.members:\n            self._abandon(batch)\n",
        new="        self._abandon(batch)\n",
    ),
    Mutant(
        what="what failed for all is not asked one by one",
        module="accumulating.accumulator",
        old="            self._submit(single, Why.APART)\n",
        new="            pass\n",
    ),
    Mutant(
        what="attempts before a parting do not count",
        module="accumulating.members",
        old="member.attempts_before, member.interrupts_before = work.attempt, work.interrupts",
        new="pass",
    ),
    Mutant(
        what="a drain holds back what was gathered",
        module="accumulating.accumulator",
        old="        self._flush_all(Why.STOPPING, lambda _: True)\n",
        new="        pass\n",
    ),
    Mutant(
        what="a member who has left is asked for",
        module="accumulating.batch",
        old="            self.asked = tuple(self.members) or self.asked\n",
        new="            pass\n",
    ),
    Mutant(
        what="tokens are counted for everybody",
        module="dialects.embedding",
        old="shares_of(int(counted[2]), [len(each.text) for each in inputs])",
        new="[int(counted[2])] * len(inputs)",
    ),
    Mutant(
        what="calls for different models go together",
        module="accumulating.accumulator",
        old="key = Key(call.path, new.model, new.lane,",
        new="key = Key(call.path, None, new.lane,",
    ),
    Mutant(
        what="a drain refuses nobody",
        module="orders",
        old="self._doors.draining, self._drained_at = True, now",
        new="self._drained_at = now",
    ),
    Mutant(
        what="a drain lets jobs start",
        module="gateway",
        old='return not self.orders.draining, "draining" if self.orders.draining else ""',
        new='return True, ""',
    ),
    Mutant(
        what="a file that was not in order runs",
        module="batches.checking",
        old="                self._problems.append(line)\n",
        new="                pass\n",
    ),
    Mutant(
        what="a batch that expires goes on",
        module="batches.running",
        old="                await self._jobs.cancel(record)\n",
        new="                pass\n",
    ),
    Mutant(
        what="a batch ends before its last request",
        module="batches.running",
        old="batch.completed + batch.failed >= batch.total:",
        new="batch.completed + batch.failed >= batch.total - 1:",
    ),
    Mutant(
        what="new requests of a batch wait for nobody",
        module="batches.running",
        old="            self._jobs.take_in(job)\n",
        new="            pass\n",
    ),
    Mutant(
        what="a line is cut a byte short",
        module="batches.running",
        old="text[line.start - first : line.start - first + line.length]",
        new="text[lines[0].start - first : lines[0].start - first + lines[0].length]",
    ),
    Mutant(
        what="answers go under the wrong name",
        module="batches.outcomes",
        old='"custom_id": {json.dumps(ended.custom_id)}, ',
        new='"custom_id": {json.dumps("canary0x")}, ',
    ),
    Mutant(
        what="tokens of a batch are not counted", module="batches.outcomes", old="_tokens(body) if completed else Tokens()", new="Tokens()"
    ),
    Mutant(
        what="the end of a batch is told twice",
        module="batches.desk",
        old="        if ended is not None:\n            self._tell_end(ended)\n",
        new="        if ended is not None:\n            self._tell_end(ended)\n            self._tell_end(ended)\n",
    ),
    Mutant(
        what="a cancelled batch is not stopped",
        module="storage.batches",
        old="SET status = 'cancelling', ending = 'cancelled',",
        new="SET ending = NULL,",
    ),
    Mutant(
        what="a batch counts too much",
        module="storage.batch_lines",
        old="connection.execute(_TALLY, (done, len(taken) - done,",
        new="connection.execute(_TALLY, (len(taken), len(taken) - done,",
    ),
    Mutant(
        what="what was written is written again",
        module="storage.batch_lines",
        old="taken = [each for each in outcomes if connection.execute(_TAKE_OFF, (batch, each.line, each.job)).rowcount]",
        new="taken = list(outcomes)",
    ),
    Mutant(what="cancelling everything leaves the jobs", module="cancelling", old="await jobs.cancel_caller(caller)", new="0"),
    Mutant(
        what="cancelling everything leaves the embeddings",
        module="cancelling",
        old="requests = [] if embeddings is None else embeddings.cancel_caller(caller)",
        new='requests = [RequestId("")] * 0',
    ),
    Mutant(
        what="messages go out unsigned",
        module="jobs.messages",
        old="hmac.new(_key_of(secret), b",
        new='hmac.new(b"", b',
    ),
    Mutant(
        what="a name that leads to secrets is connected to",
        module="backends.webhook_poster",
        old='        if any(self._forbidden(each["host"]) for each in found):\n',
        new="        if False:\n",
    ),
    Mutant(
        what="an address that is written as a number is connected to",
        module="backends.webhook_poster",
        old="            return self._forbidden(socket.inet_ntoa(socket.inet_aton(host)))\n",
        new="            return False\n",
    ),
    Mutant(
        what="any host is told",
        module="jobs.addresses",
        old="    if host not in allowed_hosts(settings):\n",
        new="    if False:\n",
    ),
    Mutant(
        what="what is not allowed any more is told",
        module="jobs.telling",
        old="if host_of(delivery.url) not in allowed_hosts(settings) or not settings.secret:",
        new="if not settings.secret:",
    ),
    Mutant(
        what="a message that was not taken is given up at once",
        module="jobs.telling",
        old="attempts >= settings.max_attempts:",
        new="attempts >= 1:",
    ),
    Mutant(
        what="a message that was not taken counts as delivered",
        module="jobs.telling",
        old="        if not reason:\n",
        new='        if not reason or reason == "http_500":\n',
    ),
    Mutant(
        what="a message that was delivered comes again",
        module="jobs.telling",
        old="            await self._deliveries.told(delivery.job_id, Webhook.DELIVERED, attempts, None)\n",
        new="            await self._deliveries.told(delivery.job_id, Webhook.WAITING, attempts, self._clock.wall() + 1.0)\n",
    ),
    Mutant(
        what="nobody is asked again",
        module="jobs.messages",
        old="return BACKOFF_S[min(max(1, attempts), len(BACKOFF_S)) - 1]",
        new="return 1e6",
    ),
    Mutant(
        what="an end is told before it is one",
        module="storage.jobs",
        old="_UNTOLD = \"webhook = 'waiting' AND ended_wall_s IS NOT NULL\"\n",
        new="_UNTOLD = \"webhook = 'waiting'\"\n",
    ),
    Mutant(
        what="what somebody else loaded is not noticed",
        module="backend_watch",
        old="self._post(Drifted(appeared=loaded, ",
        new="self._post(Drifted(appeared=(), ",
    ),
    Mutant(
        what="what somebody else unloaded is not noticed",
        module="backend_watch",
        old="vanished=tuple(Unloaded(model=name) for name in vanished)))",
        new="vanished=()))",
    ),
    Mutant(
        what="what waits while the disk fails is forgotten",
        module="storage.backlog",
        old="            self._jobs.extendleft(job for job in reversed([*jobs, *behind]) if job.future is None)\n",
        new="            pass\n",
    ),
    Mutant(
        what="a disk that is idle is never tried again",
        module="storage.writer",
        old="return [] if self._trouble is None else [probe]",
        new="return []",
    ),
    Mutant(
        what="a job that was refused stays on the disk",
        module="storage.jobs",
        old="if error.fault is StorageFault.IO and not _has_key(new):",
        new="if False:",
    ),
    Mutant(
        what="a job that is found by its key waits for nobody",
        module="jobs.desk",
        old="            await self._make_sure_of(accepted.job_id)\n",
        new="            pass\n",
    ),
    Mutant(
        what="a cancel that the disk had taken all the same stops nothing",
        module="jobs.desk",
        old=" or await self._goes_on_cancelled(record.job_id)",
        new="",
    ),
    Mutant(
        what="an end that the disk did not take is not written again",
        module="jobs.feeder",
        old="                return await write()\n            except StorageUnavailable:\n",
        new="                return await write()\n            except StorageUnavailable as error:\n                raise error\n",
    ),
    Mutant(
        what="a price that the disk did not take is not written again",
        module="cloud.purse",
        old="                await asyncio.sleep(RETRY_WRITE_S)\n                self._wake.set()\n",
        new="                pass\n",
    ),
    Mutant(
        what="a request whose cancel the disk had taken all the same outlives its batch",
        module="batches.running",
        old="        await self._jobs.cancel_doubtful()",
        new="        ",
    ),
    Mutant(
        what="nobody is told of a job whose cancel the disk had taken all the same",
        module="jobs.feeder",
        old="            await self._tell_what_is_recorded(run, came, attempt)\n",
        new="            pass\n",
    ),
)
