"""Every fault that Hearth is built for, what must hold when it happens, and the folders of tests/
that show it.

What holds for every row and is not repeated in it: nothing accepted is lost or ended twice, nobody
is answered with a defect, nothing is left over, and Hearth recovers without a restart.
`test_phases.py` keeps the table true, docs_build/ makes a page of it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Final


@dataclass(slots=True)
class Row:
    """One fault; `phases` are those of the phase matrix that are of its kind, `left_out` says what
    no test can show, and why.
    """

    key: str
    folders: list[str]
    fault: str
    expected: str
    phases: list[str] = field(default_factory=list)
    left_out: str = ""


TEXT: Final = """
# The gateway dies or is stopped
F-01 [reliability] kill -9 while jobs wait -> every acknowledged job is there, in order; one key is one job
F-02 [faults, reliability] kill -9 in mid-stream -> the caller sees a break and never a whole answer, the model server is free, a job runs
    again
F-03 [execution, faults] kill -9 around a swap -> the next process asks what is loaded and assumes nothing
F-04 [reliability] kill -9 between a result and its record -> before the commit it runs again, after it it does not
F-05 [jobs, reliability] kill -9 while something is put back -> it is there once, at the front
F-06 [reliability, storage] kill -9 in a migration, a checkpoint or while old rows go -> the next start completes or repeats it
F-07 [jobs, reliability] kill -9 during recovery, again and again -> recovery repeats itself and burns no attempt
F-08 [jobs] a job that brings the process down each time it starts -> it is found out and given up, the others are done
F-09 [config, faults, queue, reliability] SIGTERM at rest, queued, loading, in a prompt, in mid-stream, during the start, during a reload
    -> a proper end for everybody within the grace, with open pages too
F-10 [cli, faults, queue] a second signal; SIGINT; kill -9 during the stop -> the grace ends at once; what is on the disk stays whole
F-11 [config, faults] a hundred SIGHUPs -> a few readings of the file, no request noticed
F-12 [faults] SIGSTOP for longer than every timeout, then SIGCONT -> what came meanwhile counts; nothing is sent twice
F-13 [observability] other signals -> a broken pipe is no end
  left out: SIGUSR1 and the rest keep their default: they end the process, which is then F-01.
F-14 [bootstrap, cli, storage] a second instance on the file or the port -> it is refused with a reason, the first goes on
F-15 [execution] the model server comes up long after the gateway -> requests wait as long as they may; it is noticed within a second
F-16 [bootstrap] the queue hangs under a service manager's watchdog -> the watchdog is fed by decisions and not by the loop, so it starves

# The model server
F-17 [execution, faults] it refuses, is killed, restarts -> requests wait as long as they may; nobody else is sent to it meanwhile
  in every phase: call refuse, two calls refuse, model server killed and back
F-18 [execution, faults] it accepts and never answers -> the model is unloaded and loaded again, the request sent once more, then given up;
    one that works is left alone
  in every phase: call silent, two calls silent
F-19 [emulator, execution, faults] a model hangs while every health route answers -> seen by the missing progress, healed by a reload, the
    order kept
  in every phase: unload stuck
F-20 [emulator, execution, faults] 500, 502 or 503 before a byte -> a 503 is tried once more unseen; its own words reach the caller in the
    caller's dialect
  in every phase: call server_error, two calls server_error
F-21 [api, emulator, execution, faults] 404: the model is gone -> a 404 in the caller's dialect, not tried again, the server not taken for
    down; what stays in memory keeps no other model out
  in every phase: load not_found
F-22 [emulator, execution, faults, scheduling] out of memory, the runner dies -> one more try, then an answer; no reservation is left and no
    load is repeated for ever
  in every phase: load fail, call runner_died, two calls runner_died
F-23 [emulator, execution, faults] a load never ends -> given up at its time; other models are held up no longer
  in every phase: load never
F-24 [execution, faults] a load is complete after we gave it up; a load that lies -> what is really there is used
  in every phase: load lie, load uncut
F-25 [execution, faults, gateway] 200, then an error line -> a failure in the stream, in the right form
  in every phase: call error_line, two calls error_line
F-26 [engines, execution, faults] garbage, a page, bytes, nothing -> an error, never a completed answer
F-27 [dialects, engines, faults] half a line, half a character, a byte at a time -> the same answer however it is cut; a cut one is an
    error
F-28 [clients, emulator, engines, execution, faults] it hangs up in mid-stream: FIN, reset, too short, no last chunk; its model dies -> a
    stream goes on where it can; a truncated answer is never told as a complete one
  in every phase: call gone_mid_stream, two calls gone_mid_stream, call gone_before_head, two calls gone_before_head, call no_done, two
    calls no_done, call runner_dies, two calls runner_dies
F-29 [engines] a line without end -> cut off
F-30 [execution, faults] it is slow, or falls silent in the middle -> silence has a limit of its own; slowness does not end an answer
  in every phase: call slow, two calls slow, call stall, two calls stall
F-31 [engines] fifty thousand tiny chunks -> all of them, in order
F-32 [faults] two ends, words after the end, absurd counts -> an end is an end; numbers that cannot be teach nothing and break nothing
F-33 [engines] it answers a cancelled call later -> nobody gets that answer
F-34 [emulator] it goes on with a prompt that nobody waits for -> the next caller waits or gets a reloaded model
F-35 [execution, scheduling] somebody else loads, drops or evicts a model -> what is there is looked at and counted
F-36 [engines] slow or huge headers, a redirect -> refused; the target of a redirect is never called
F-37 [engines] a compressed body although none was asked for -> refused and not inflated
F-38 [engines, faults] unknown fields, an absurd date, another version -> passed on as they came

# Callers
F-39 [faults, gateway, jobs] a caller leaves the queue -> never sent to the model server; a job stays
  in every phase: all callers leave
F-40 [cloud, gateway] a caller leaves while it is served, streaming or not, before or after the first byte -> the connection to the model
    server is closed and the slot is free
F-41 [api] half-close -> counts as leaving
F-42 [queue] a caller leaves in the tick of completion -> one end
F-43 [faults, gateway] ten thousand wait and all leave at once -> gone at once, and those who run go on
F-44 [execution, gateway] a reader is slow or stands still -> bounded memory, then dropped, and its slot goes to the next
F-45 [api, faults] a body that is slow, short, long, endless, or waits to be asked for -> a deadline, a refusal or an answer; never a
    second request
F-46 [jobs] one idempotency key of jobs or batches: again, at the same moment, with another body, of another caller, after the
    end, after its time, answered with a job of the same `job_key` -> one job; 409, 422, the kept result, another job, a new job, that job
    also after its end
F-47 [faults, jobs] a client repeats a request while the first one waits -> with a key one job; without one two requests
F-48 [api, jobs, queue] cancel in every state, twice, and of somebody else's -> one end; what is another's does not exist
F-49 [api, dialects] a body of the largest size, ten thousand messages, absurd limits -> read, or refused in the caller's dialect with
    what is wrong
F-50 [api, faults] HTTP/1.0, a connection used again after an error, two requests in one packet, offers to upgrade -> answered in order,
    or refused and closed
F-51 [faults] a thousand connections that come and go -> no descriptor is left

# The store
F-52 [storage] another program holds the lock -> what must be durable is refused, the rest is kept and written later
F-53 [bootstrap, jobs, reliability, storage] the disk is full, wherever it fills up, at the start too -> nothing is acknowledged that is
    not written; the reserve lets old rows go
F-54 [bootstrap, storage] the file becomes read-only, moves away or loses its directory -> as with a full disk; never in secret and never in
    memory only
F-55 [dst, reliability, storage] an I/O error at the first, second, ... operation -> no acknowledged row is lost or doubled, whichever it
    is
F-56 [storage] a sync fails -> the connection is not trusted any more: opened anew, the file checked
F-57 [storage] a damaged page or schema, an empty file, another version, no database at all -> refused with what to do, and left alone;
    a damaged, cut or lost write-ahead log -> what was committed and cannot be read is counted and reported, and both files are kept
F-58 [storage] each commit takes long -> the loop goes on; everything that waits shares the next sync
F-59 [storage] a task is cancelled in the middle of a statement -> the statement finishes or rolls back as one
F-60 [storage] the owner copies the live file or looks in with a shell -> a backup is whole, nobody is disturbed
F-61 [storage] very many old rows -> they go in small steps between the work

# Time
F-62 [cloud, faults, jobs, observability, queue] the wall clock jumps: an hour, ten years, 1970 -> waits, durations and limits do not
    notice, announced tasks do; a day's money is not given out twice; no message is put off
F-63 [cloud, config] the skipped and the repeated hour, in several zones -> every minute is classified once, by the wall
F-64 [config] hours over midnight, of a whole day, of no length -> the start belongs to them, the end does not
F-65 [faults, queue] active hours begin or end while something runs, is stopped or swapped -> at the beginning what keeps the house
    waiting is stopped; from the end on nobody is

# Alerts
F-66 [alerts] 429, with any advice or none -> the advice is kept, one post at a time, a bounded queue, losses counted
F-67 [alerts] the webhook is deleted, or the address refuses -> one post, then none until the configuration is read again, or one an hour
F-68 [alerts] errors, silence, resets -> a bounded number of tries, further and further apart; requests notice nothing
F-69 [alerts] the name is unknown, or the name server hangs -> looked up beside the threads of requests
F-70 [alerts] ten thousand events -> a handful of posts that say how many
F-71 [alerts] alerting fails; the end comes with alerts waiting -> no alert about alerts; two seconds at most

# The configuration
F-72 [config] a file that is wrong, empty, binary, huge, hostile -> all problems are named, the old settings stay, the next good file
    counts
F-73 [config] deleted, unreadable, a directory, behind links, written in steps, touched, written a thousand times -> half a file is never
    in force, and the last whole one is
F-74 [admission, config] valid and dangerous: no keys on an open address, another port, limits of zero -> refused, or named as waiting for
    a restart
F-75 [config, faults] a reload during a swap, a preemption, a full queue, a start, a stop, another reload -> in force at one point; what
    runs does not notice
  in every phase: reload
F-76 [faults, queue, scheduling] the queue's limit falls below its length; a key is taken out; a model no longer fits -> what was
    accepted ends well, new requests are refused

# Claude
F-77 [backends, cloud] 429 with advice -> a short pause is waited for, a long one is the caller's
F-78 [backends, cloud] 429 because the account's money is spent -> not asked again until a reload, and told
F-79 [backends, cloud] 529, 500, 503 -> a bounded number of tries, then an error of the caller's dialect
F-80 [backends, cloud] 401, 403 -> not asked again; the key shows nowhere
F-81 [backends, cloud] 400, 413 -> the caller's to change
F-82 [backends, cloud, dialects] errors, pings only, no end, unknown or disordered events after the head -> an error in the stream; signs
    of life do not count for ever; what is unknown says nothing
F-83 [faults] a certificate that nobody vouches for, no TLS at all -> not a byte of the request is sent

# The card and the machine
F-84 [backends] no driver, a driver that does not start, hangs, lies, loses the card -> unknown instead of wrong, bounded by a thread and a
    time, told once
F-85 [execution, scheduling] another program takes GPU memory -> what others hold is not there for models
F-86 [emulator, execution] a model computes on the CPU in secret -> told, shown, and given the time that it takes
F-87 [faults, security] no descriptors are left -> it serves again when there are some; the file was open before
F-88 [api, queue] memory is short -> everything that grows has a bound: bodies, buffers, queues, histories
  left out: There is no shedding by bytes in flight: depth times the largest body is the bound, and the owner sets both.
F-89 [alerts, faults] the loop stands still -> told once with its length; nothing that came meanwhile is given up
  in every phase: loop stands still
F-90 [alerts, backends, storage] the threads are all busy -> names, the disk and the card have threads of their own
F-91 [observability] the log's disk is full, its reader gone or asleep -> lines are dropped and counted; nobody waits
F-92 [faults] others take the processor -> slow and right (in `make reliability`)
F-93 [faults, storage] no home, no temporary directory, the C locale, an open umask, an unknown zone -> it starts, and its file is private

# Races
F-94 [queue, scheduling] preemption and completion -> one winner; a result that is there is delivered
F-95 [execution] an answer that ends twice, or after its cancel -> the first end counts
F-96 [faults, queue] two internal arrivals during one external run -> one stop
  in every phase: the house needs the card
F-97 [faults, queue] an internal arrival while external work is put back or about to start -> nothing is forgotten and nothing starts
    twice
  in every phase: the owner makes room
F-98 [queue] a caller leaves between its turn and its start -> never sent
F-99 [dst, execution, scheduling] a request as the home model's timer fires -> the request wins
F-100 [dst, scheduling] a model goes as a request for it comes -> served, after a load where one is needed
F-101 [faults, scheduling] the reason for a swap leaves while it is under way -> no third swap
F-102 [api, config] a reload between a request's limit and its place in the queue -> old rules or new ones for one request, never both
F-103 [faults] a stop between a job's arrival and its commit -> promised and on the disk, or refused and not
F-104 [execution] a waiter that was woken is cancelled -> no decision is lost: whoever reports a fact decides, or leaves it to who runs
F-105 [bootstrap, execution] a decision or a background task raises -> reported, started again, nothing lost; the watchdog sees a queue that
    only fails
F-106 [execution] the garbage collector runs at the worst moment -> every task is held by somebody

# Resumed streams
F-107 [dialects, execution] the second run says something else, anywhere -> an error worth a retry, and not one byte of it
F-108 [dialects, execution] the second run ends early, errs or is cut -> another answer, or a fault of the model server
F-109 [dialects, execution] the second run is the same, cut differently -> it goes on without a gap or a repetition
F-110 [dialects, execution] an answer is cut inside a letter or a stop sequence, at its limit, before its first or after its last word -> it
    goes on without a gap or a repetition
F-111 [execution] the prompt cannot be rendered, slowly, or not as before; the context has no room for the text so far -> the stream is
    replayed, or finishes first
F-112 [dialects, execution] the model server fails or is interrupted again while it says the rest, or says something else -> once more before
    the rest begins, after that an error behind right text
F-113 [execution] a caller leaves while its stream is continued -> the GPU is free at once

# An elastic engine
F-114 [engines, gateway, scheduling] it takes no more requests, for a moment or for minutes -> they wait in the order of the queue for the
    pause that it names, an alias uses the card meanwhile, and it is sent no more at once than it took; after ten minutes an error
F-115 [engines, gateway] the machine with a request is lost -> sent once more; a stream goes on as after any break
F-116 [gateway] it has scaled to nothing and takes minutes to start a machine -> waited for, with signs of life
F-117 [engines] it refuses its list, or answers it late -> its models stay as they were; an engine at rest is not woken by the question
F-118 [engines, gateway] its address is gone -> its own models are away, others go on
F-119 [gateway] a name comes to mean a model on other machines while a request waits that may not leave -> 403, and nothing is sent
"""
"""A row is `key [folders] fault -> what must hold`; four spaces continue a line."""
_ROW = re.compile(r"(F-\d+) \[(.*?)\] (.*?) -> (.*)")


def _read(text: str) -> dict[str, list[Row]]:
    parts: dict[str, list[Row]] = {}
    rows: list[Row] = []
    for line in text.replace("\n    ", " ").strip().splitlines():
        head, _, rest = line.strip().partition(": ")
        if line.startswith("# "):
            parts[line.removeprefix("# ")] = rows = []
        elif found := _ROW.fullmatch(line):
            rows.append(Row(found[1], found[2].split(", "), found[3], found[4]))
        elif head == "in every phase":
            rows[-1].phases = rest.split(", ")
        elif head == "left out":
            rows[-1].left_out = rest
    return parts


PARTS: Final = _read(TEXT)
"""Rows by the part that fails."""
