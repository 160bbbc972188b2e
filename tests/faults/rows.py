"""Every fault that Hearth is built for, what must hold when it happens, and the tests that show it; `table.py` reads it.

A row is `key: fault -> what must hold`, then the faults of the phase matrix (`test_phases.py`) that are of its kind, the modules under
tests/ with its tests, and why no test can show it. Four spaces continue a line.
"""

from __future__ import annotations

TEXT = """
# The gateway dies or is stopped
F-01: kill -9 while jobs wait -> every acknowledged job is there, in order; one key is one job
  shown in: reliability/test_failpoints, reliability/test_syncing, reliability/test_random_kills
F-02: kill -9 in mid-stream -> the caller sees a break and never a whole answer, the model server is free, a job runs again
  shown in: faults/test_processes, reliability/test_random_kills
F-03: kill -9 around a swap -> the next process asks what is loaded and assumes nothing
  shown in: faults/test_processes, worker/test_backend_faults
F-04: kill -9 between a result and its record -> before the commit it runs again, after it it does not
  shown in: reliability/test_failpoints
F-05: kill -9 while something is put back -> it is there once, at the front
  shown in: reliability/test_failpoints, jobs/test_table
F-06: kill -9 in a migration, a checkpoint or while old rows go -> the next start completes or repeats it
  shown in: reliability/test_failpoints, reliability/test_books, storage/test_opening
F-07: kill -9 during recovery, again and again -> recovery repeats itself and burns no attempt
  shown in: reliability/test_failpoints, jobs/test_table
F-08: a job that brings the process down each time it starts -> it is found out and given up, the others are done
  shown in: jobs/test_feeding, jobs/test_table, jobs/test_order
F-09: SIGTERM at rest, queued, loading, in a prompt, in mid-stream, during the start, during a reload -> a proper end for everybody within
    the grace, with open pages too
  shown in: reliability/test_sigterm, faults/test_processes, config/test_reloading, worker/test_stopping
F-10: a second signal; SIGINT; kill -9 during the stop -> the grace ends at once; what is on the disk stays whole
  shown in: faults/test_processes, cli/test_serve, worker/test_stopping
F-11: a hundred SIGHUPs -> a few readings of the file, no request noticed
  shown in: faults/test_processes, config/test_reloading
F-12: SIGSTOP for longer than every timeout, then SIGCONT -> what came meanwhile counts; nothing is sent twice
  shown in: faults/test_processes, faults/test_stalls
F-13: other signals -> a broken pipe is no end
  shown in: observability/test_logs
  left out: SIGUSR1 and the rest keep their default: they end the process, which is then F-01.
F-14: a second instance on the file or the port -> it is refused with a reason, the first goes on
  shown in: storage/test_opening, cli/test_serve, worker/test_store
F-15: the model server comes up long after the gateway -> requests wait as long as they may; it is noticed within a second
  shown in: worker/test_backend_faults
F-16: the queue hangs under a service manager's watchdog -> the watchdog is fed by decisions and not by the loop, so it starves
  shown in: orders/test_service_manager

# The model server
F-17: it refuses, is killed, restarts -> requests wait as long as they may; nobody else is sent to it meanwhile
  in every phase: call refuse, two calls refuse, model server killed and back
  shown in: worker/test_backend_faults
F-18: it accepts and never answers -> the model is unloaded and loaded again, the request sent once more, then given up; one that works is
    left alone
  in every phase: call silent, two calls silent
  shown in: worker/test_backend_faults
F-19: a model hangs while every health route answers -> seen by the missing progress, healed by a reload, the order kept
  in every phase: unload stuck
  shown in: emulator/test_gateway_heals, worker/test_backend_faults, worker/test_loading
F-20: 500, 502 or 503 before a byte -> a 503 is tried once more unseen; its own words reach the caller in the caller's dialect
  in every phase: call server_error, two calls server_error
  shown in: emulator/test_gateway_heals, worker/test_backend_faults
F-21: 404: the model is gone -> a 404 in the caller's dialect, not tried again, the server not taken for down; what stays in memory keeps no
    other model out
  in every phase: load not_found
  shown in: api/test_inference, worker/test_loading, emulator/test_gateway_heals
F-22: out of memory, the runner dies -> one more try, then an answer; no reservation is left and no load is repeated for ever
  in every phase: load fail, call runner_died, two calls runner_died
  shown in: worker/test_backend_faults, emulator/test_gateway_heals, scheduling/test_memory
F-23: a load never ends -> given up at its time; other models are held up no longer
  in every phase: load never
  shown in: worker/test_loading, emulator/test_gateway_heals
F-24: a load is complete after we gave it up; a load that lies -> what is really there is used
  in every phase: load lie
  shown in: worker/test_loading
F-25: 200, then an error line -> a failure in the stream, in the right form
  in every phase: call error_line, two calls error_line
  shown in: worker/test_backend_faults, wire/test_captures_through_gateway
F-26: garbage, a page, bytes, nothing -> an error, never a completed answer
  shown in: faults/test_model_server, backends/test_data_path, worker/test_backend_faults
F-27: half a line, half a character, a byte at a time -> the same answer however it is cut; a cut one is an error
  shown in: dialects/test_framing, backends/test_data_path, faults/test_model_server
F-28: it hangs up in mid-stream: FIN, reset, too short, no last chunk -> a truncated answer is never told as a complete one
  in every phase: call gone_mid_stream, two calls gone_mid_stream, call gone_before_head, two calls gone_before_head, call no_done, two
    calls no_done
  shown in: backends/test_data_path, emulator/test_gateway_heals
F-29: a line without end -> cut off
  shown in: backends/test_data_path
F-30: it is slow, or falls silent in the middle -> silence has a limit of its own; slowness does not end an answer
  in every phase: call slow, two calls slow, call stall, two calls stall
  shown in: worker/test_backend_faults
F-31: fifty thousand tiny chunks -> all of them, in order
  shown in: backends/test_data_path
F-32: two ends, words after the end, absurd counts -> an end is an end; numbers that cannot be teach nothing and break nothing
  shown in: faults/test_model_server
F-33: it answers a cancelled call later -> nobody gets that answer
  shown in: backends/test_data_path
F-34: it goes on with a prompt that nobody waits for -> the next caller waits or gets a reloaded model
  shown in: emulator/test_gateway_heals
F-35: somebody else loads, drops or evicts a model -> what is there is looked at and counted
  shown in: gpu/test_gpu_watch, worker/test_backend_faults, scheduling/test_order
F-36: slow or huge headers, a redirect -> refused; the target of a redirect is never called
  shown in: backends/test_data_path
F-37: a compressed body although none was asked for -> refused and not inflated
  shown in: backends/test_data_path
F-38: unknown fields, an absurd date, another version -> passed on as they came
  shown in: faults/test_model_server, backends/test_data_path

# Callers
F-39: a caller leaves the queue -> never sent to the model server; a job stays
  in every phase: all callers leave
  shown in: wire/test_leaving, jobs/test_feeding
F-40: a caller leaves while it is served, streaming or not, before or after the first byte -> the connection to the model server is closed
    and the slot is free
  shown in: wire/test_leaving, cloud/test_faults
F-41: half-close -> counts as leaving
  shown in: api/test_leaving
F-42: a caller leaves in the tick of completion -> one end
  shown in: worker/test_races
F-43: ten thousand wait and all leave at once -> gone at once, and those who run go on
  shown in: faults/test_instants, wire/test_leaving
F-44: a reader is slow or stands still -> bounded memory, then dropped, and its slot goes to the next
  shown in: worker/test_slow_readers, wire/test_leaving
F-45: a body that is slow, short, long, endless, or waits to be asked for -> a deadline, a refusal or an answer; never a second request
  shown in: api/test_deadlines, api/test_server, faults/test_connections, api/test_inference
F-46: one idempotency key of jobs or batches: again, at the same moment, with another body, of another caller, after the end, after its
    time, answered with a job of the same `job_key` -> one job; 409, 422, the kept result, another job, a new job, that job also after its
    end
  shown in: jobs/test_routes, jobs/test_table, batches/test_keys, batches/test_routes
F-47: a client repeats a request while the first one waits -> with a key one job; without one two requests
  shown in: faults/test_connections, jobs/test_feeding
F-48: cancel in every state, twice, and of somebody else's -> one end; what is another's does not exist
  shown in: worker/test_cancelling, jobs/test_feeding, api/test_control
F-49: a body of the largest size, ten thousand messages, absurd limits -> read, or refused in the caller's dialect with what is wrong
  shown in: api/test_inference, dialects/test_envelope
F-50: HTTP/1.0, a connection used again after an error, two requests in one packet, offers to upgrade -> answered in order, or refused and
    closed
  shown in: api/test_server, faults/test_connections
F-51: a thousand connections that come and go -> no descriptor is left
  shown in: faults/test_connections

# The store
F-52: another program holds the lock -> what must be durable is refused, the rest is kept and written later
  shown in: storage/test_faults, storage/test_opening
F-53: the disk is full, wherever it fills up -> nothing is acknowledged that is not written; the reserve lets old rows go
  shown in: storage/test_faults, jobs/test_feeding, worker/test_store
F-54: the file becomes read-only, moves away or loses its directory -> as with a full disk; never in secret and never in memory only
  shown in: storage/test_faults, storage/test_opening, worker/test_store
F-55: an I/O error at the first, second, ... operation -> no acknowledged row is lost or doubled, whichever it is
  shown in: storage/test_faults, storage/test_opening, reliability/test_io_errors, dst/test_worlds
F-56: a sync fails -> the connection is not trusted any more: opened anew, the file checked
  shown in: storage/test_faults
F-57: a damaged page, a cut or lost write-ahead log, an empty file, another version, no database at all -> refused with what to do, and left
    alone
  shown in: storage/test_opening
F-58: each commit takes long -> the loop goes on; everything that waits shares the next sync
  shown in: storage/test_writer
F-59: a task is cancelled in the middle of a statement -> the statement finishes or rolls back as one
  shown in: storage/test_writer
F-60: the owner copies the live file or looks in with a shell -> a backup is whole, nobody is disturbed
  shown in: storage/test_opening
F-61: very many old rows -> they go in small steps between the work
  shown in: storage/test_history, storage/test_writer

# Time
F-62: the wall clock jumps: an hour, ten years, 1970 -> waits, durations and limits do not notice, announced tasks do; a day's money is not
    given out twice; no message is put off
  shown in: faults/test_instants, cloud/test_cloud_budget, worker/test_store, test_clock, observability/test_logs,
    worker/test_preempting, jobs/test_webhooks
F-63: the skipped and the repeated hour, in several zones -> every minute is classified once, by the wall
  shown in: config/test_active_hours, cloud/test_cloud_budget
F-64: hours over midnight, of a whole day, of no length -> the start belongs to them, the end does not
  shown in: config/test_active_hours
F-65: active hours begin or end while something runs, is stopped or swapped -> at the beginning what keeps the house waiting is stopped;
    from the end on nobody is
  shown in: faults/test_instants, worker/test_preempting

# Alerts
F-66: 429, with any advice or none -> the advice is kept, one post at a time, a bounded queue, losses counted
  shown in: alerts/test_delivery
F-67: the webhook is gone -> one post, then none until the configuration is read again
  shown in: alerts/test_delivery
F-68: errors, silence, resets -> a bounded number of tries, further and further apart; requests notice nothing
  shown in: alerts/test_delivery, alerts/test_poster
F-69: the name is unknown, or the name server hangs -> looked up beside the threads of requests
  shown in: alerts/test_poster
F-70: ten thousand events -> a handful of posts that say how many
  shown in: alerts/test_delivery
F-71: alerting fails; the end comes with alerts waiting -> no alert about alerts; two seconds at most
  shown in: alerts/test_rules, alerts/test_delivery

# The configuration
F-72: a file that is wrong, empty, binary, huge, hostile -> all problems are named, the old settings stay, the next good file counts
  shown in: config/test_document, config/test_loading, config/test_reloading
F-73: deleted, unreadable, a directory, behind links, written in steps, touched, written a thousand times -> half a file is never in force,
    and the last whole one is
  shown in: config/test_reload_watching, config/test_reloading
F-74: valid and dangerous: no keys on an open address, another port, limits of zero -> refused, or named as waiting for a restart
  shown in: config/test_keys_and_environment, config/test_reloading, test_rate_limiter
F-75: a reload during a swap, a preemption, a full queue, a start, a stop, another reload -> in force at one point; what runs does not
    notice
  in every phase: reload
  shown in: faults/test_instants, config/test_reload_watching, config/test_reloading
F-76: the queue's limit falls below its length; a key is taken out; a model no longer fits -> what was accepted ends well, new requests are
    refused
  shown in: worker/test_reloading, faults/test_connections, scheduling/test_memory

# Claude
F-77: 429 with advice -> a short pause is waited for, a long one is the caller's
  shown in: backends/test_claude, cloud/test_faults
F-78: 429 because the account's money is spent -> not asked again until a reload, and told
  shown in: backends/test_claude, cloud/test_faults
F-79: 529, 500, 503 -> a bounded number of tries, then an error of the caller's dialect
  shown in: backends/test_claude, cloud/test_faults
F-80: 401, 403 -> not asked again; the key shows nowhere
  shown in: backends/test_claude, cloud/test_faults, cloud/test_clients_at_claude
F-81: 400, 413 -> the caller's to change
  shown in: backends/test_claude, cloud/test_faults
F-82: errors, pings only, no end, unknown or disordered events after the head -> an error in the stream; signs of life do not count for
    ever; what is unknown says nothing
  shown in: backends/test_claude, cloud/test_faults, dialects/claude/test_answering
F-83: a certificate that nobody vouches for, no TLS at all -> not a byte of the request is sent
  shown in: faults/test_tls

# The card and the machine
F-84: no driver, a driver that does not start, hangs, lies, loses the card -> unknown instead of wrong, bounded by a thread and a time, told
    once
  shown in: gpu/test_gpu_watch, gpu/test_gpu_thread, gpu/test_nvml
F-85: another program takes GPU memory -> what others hold is not there for models
  shown in: gpu/test_gpu_watch, scheduling/test_memory
F-86: a model computes on the CPU in secret -> told, shown, and given the time that it takes
  shown in: gpu/test_gpu_watch, emulator/test_gateway_heals
F-87: no descriptors are left -> it serves again when there are some; the file was open before
  shown in: faults/test_processes, security/test_connections
F-88: memory is short -> everything that grows has a bound: bodies, buffers, queues, histories
  shown in: worker/test_submitting, worker/test_slow_readers, api/test_inference
  left out: There is no shedding by bytes in flight: depth times the largest body is the bound, and the owner sets both.
F-89: the loop stands still -> told once with its length; nothing that came meanwhile is given up
  in every phase: loop stands still
  shown in: alerts/test_monitors, faults/test_stalls
F-90: the threads are all busy -> names, the disk and the card have threads of their own
  shown in: alerts/test_poster, storage/test_writer, gpu/test_gpu_thread
F-91: the log's disk is full, its reader gone or asleep -> lines are dropped and counted; nobody waits
  shown in: observability/test_logs
F-92: others take the processor -> slow and right (in `make reliability`)
  shown in: faults/test_processes
F-93: no home, no temporary directory, the C locale, an open umask, an unknown zone -> it starts, and its file is private
  shown in: faults/test_processes, storage/test_opening

# Races
F-94: preemption and completion -> one winner; a result that is there is delivered
  shown in: worker/test_races, scheduling/test_yielding
F-95: an answer that ends twice, or after its cancel -> the first end counts
  shown in: worker/test_slow_readers, worker/test_races, worker/test_cancelling
F-96: two internal arrivals during one external run -> one stop
  in every phase: the house needs the card
  shown in: worker/test_preempting
F-97: an internal arrival while external work is put back or about to start -> nothing is forgotten and nothing starts twice
  in every phase: the owner makes room
  shown in: worker/test_races, worker/test_preempting
F-98: a caller leaves between its turn and its start -> never sent
  shown in: worker/test_cancelling, worker/test_races
F-99: a request as the home model's timer fires -> the request wins
  shown in: worker/test_loading, scheduling/test_memory, dst/test_races
F-100: a model goes as a request for it comes -> served, after a load where one is needed
  shown in: scheduling/test_order, dst/test_races
F-101: the reason for a swap leaves while it is under way -> no third swap
  shown in: faults/test_instants, scheduling/test_runs
F-102: a reload between a request's limit and its place in the queue -> old rules or new ones for one request, never both
  shown in: config/test_reload_watching, api/test_app
F-103: a stop between a job's arrival and its commit -> promised and on the disk, or refused and not
  shown in: faults/test_accepting
F-104: a waiter that was woken is cancelled -> no decision is lost: whoever reports a fact decides, or leaves it to who runs
  shown in: worker/test_supervision
F-105: a decision or a background task raises -> reported, started again, nothing lost; the watchdog sees a queue that only fails
  shown in: worker/test_supervision, orders/test_service_manager
F-106: the garbage collector runs at the worst moment -> every task is held by somebody
  shown in: worker/test_supervision

# Resumed streams
F-107: the second run says something else, anywhere -> an error worth a retry, and not one byte of it
  shown in: dialects/test_replay, worker/test_resuming
F-108: the second run ends early, errs or is cut -> another answer, or a fault of the model server
  shown in: dialects/test_replay, worker/test_resuming
F-109: the second run is the same, cut differently -> it goes on without a gap or a repetition
  shown in: dialects/test_replay, worker/test_resuming
F-110: an answer is cut inside a letter or a stop sequence, at its limit, before its first or after its last word -> it goes on without a
    gap or a repetition
  shown in: dialects/test_continuing, worker/test_resuming
F-111: the prompt cannot be rendered, slowly, or not as before; the context has no room for the text so far -> the stream is replayed, or
    finishes first
  shown in: worker/test_resuming
F-112: the model server fails or is interrupted again while it says the rest, or says something else -> once more before the rest begins,
    after that an error behind right text
  shown in: worker/test_resuming, dialects/test_continuing
F-113: a caller leaves while its stream is continued -> the GPU is free at once
  shown in: worker/test_resuming
"""
