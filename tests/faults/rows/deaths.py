"""The gateway dies, or is told to stop."""

from __future__ import annotations

from tests.faults.table import Part, row, shown

FAILPOINTS = shown("reliability/test_failpoints", "a_gateway_that_dies_there_keeps_every_promise")
PROCESSES = "faults/test_processes"
SIGTERM = "reliability/test_sigterm"

PART = Part(
    name="The gateway dies or is stopped",
    rows=(
        row(
            "F-01",
            "kill -9 while jobs wait",
            "every acknowledged job is there, in order; one key is one job",
            FAILPOINTS,
            shown("reliability/test_syncing", "every_acknowledgement_follows_a_sync_of_its_job"),
            shown("reliability/test_random_kills", "no_job_is_lost_doubled_or_out_of_order_however_often_the_gateway_is_killed_under_load"),
        ),
        row(
            "F-02",
            "kill -9 in mid-stream",
            "the caller sees a break and never a whole answer, the model server is free, a job runs again",
            shown(
                PROCESSES,
                "a_process_that_is_killed_in_mid_stream_leaves_nothing_running_and_the_next_one_looks_what_is_loaded",
            ),
            shown("jobs/test_kill", "every_accepted_job_ends_exactly_once_however_often_the_gateway_is_killed"),
        ),
        row(
            "F-03",
            "kill -9 around a swap",
            "the next process asks what is loaded and assumes nothing",
            shown(
                PROCESSES,
                "a_process_that_is_killed_in_mid_stream_leaves_nothing_running_and_the_next_one_looks_what_is_loaded",
            ),
            shown("worker/test_backend_faults", "what_is_in_memory_at_the_start_is_adopted_without_a_word"),
        ),
        row("F-04", "kill -9 between a result and its record", "before the commit it runs again, after it it does not", FAILPOINTS),
        row(
            "F-05",
            "kill -9 while something is put back",
            "it is there once, at the front",
            FAILPOINTS,
            shown("jobs/test_table", "a_job_that_is_put_back_starts_again_and_counts_what_counts"),
        ),
        row(
            "F-06",
            "kill -9 in a migration, a checkpoint or while old rows go",
            "the next start completes or repeats it",
            FAILPOINTS,
            shown("reliability/test_books", "a_process_that_dies_there_keeps_its_books"),
            shown("storage/test_crash", "a_database_survives_being_killed_again_and_again"),
            shown("storage/test_opening", "what_a_first_start_left_when_it_was_killed_is_no_obstacle"),
        ),
        row(
            "F-07",
            "kill -9 during recovery, again and again",
            "recovery repeats itself and burns no attempt",
            FAILPOINTS,
            shown("jobs/test_table", "recovering_again_and_again_burns_no_attempts_and_touches_no_job_of_this_process"),
        ),
        row(
            "F-08",
            "a job that brings the process down each time it starts",
            "it is found out and given up, the others are done",
            shown("jobs/test_feeding", "a_job_that_brings_the_gateway_down_each_time_is_found_out_and_the_others_are_done"),
            shown("jobs/test_table", "a_job_that_was_running_when_the_process_died_too_often_ends_failed"),
            shown("jobs/test_order", "jobs_start_in_their_order"),
        ),
        row(
            "F-09",
            "SIGTERM at rest, queued, loading, in a prompt, in mid-stream, during the start, during a reload",
            "a proper end for everybody within the grace, with open pages too",
            shown(
                SIGTERM,
                "every_stream_ends_properly_and_the_process_in_time",
                "an_idle_house_with_open_pages_ends_at_once",
                "every_accepted_job_is_still_in_the_file",
            ),
            shown(PROCESSES, "a_signal_during_the_start_ends_it_and_the_next_start_works"),
            shown("config/test_reloading", "on_the_way_out_nothing_is_put_in_force_and_nobody_is_left_waiting"),
            shown("worker/test_stopping", "a_stop_during_a_swap_tells_who_waits_for_it_and_ends"),
        ),
        row(
            "F-10",
            "a second signal; SIGINT; kill -9 during the stop",
            "the grace ends at once; what is on the disk stays whole",
            shown(PROCESSES, "a_second_signal_ends_a_long_grace", "a_kill_during_an_orderly_stop_loses_no_job"),
            shown("cli/test_serve", "ctrl_c_ends_a_running_gateway_with_0"),
            shown("worker/test_stopping", "a_hurry_ends_the_grace"),
        ),
        row(
            "F-11",
            "a hundred SIGHUPs",
            "a few readings of the file, no request noticed",
            shown(PROCESSES, "a_hundred_orders_to_read_the_file_are_a_few_readings_and_cost_no_request"),
            shown("config/test_reload_plan", "an_order_is_obeyed_at_once_and_many_within_a_second_are_two_tries"),
        ),
        row(
            "F-12",
            "SIGSTOP for longer than every timeout, then SIGCONT",
            "what came meanwhile counts; nothing is sent twice",
            shown(PROCESSES, "a_process_that_was_stopped_for_a_while_goes_on_as_if_nothing_had_been"),
            shown(
                "faults/test_stalls",
                "a_first_byte_that_came_while_the_loop_stood_still_is_a_first_byte",
                "a_stream_that_went_on_while_the_loop_stood_still_is_not_idle",
                "a_stream_that_is_silent_after_the_hold_up_too_is_given_up_soon",
                "after_a_hold_up_everybody_is_served_and_nothing_is_sent_again",
            ),
        ),
        row(
            "F-13",
            "other signals",
            "a broken pipe is no end",
            shown("observability/test_logs", "a_pipe_whose_reader_is_gone_drops_and_counts"),
            left_out="SIGUSR1 and the rest keep their default: they end the process, which is then F-01.",
        ),
        row(
            "F-14",
            "a second instance on the file or the port",
            "it is refused with a reason, the first goes on",
            shown("storage/test_crash", "a_second_process_is_refused_while_the_first_lives_and_welcome_after"),
            shown("storage/test_opening", "a_second_instance_is_refused_and_told_who_has_the_file"),
            shown("cli/test_serve", "a_taken_port_ends_with_1_since_it_may_be_free_later_and_names_it"),
            shown("worker/test_store", "a_second_gateway_on_the_same_file_is_refused_and_the_first_goes_on"),
        ),
        row(
            "F-15",
            "the model server comes up long after the gateway",
            "requests wait as long as they may; it is noticed within a second",
            shown(
                "worker/test_backend_faults",
                "a_backend_that_comes_up_late_is_noticed_within_a_second_and_serves_who_still_waits",
                "a_backend_that_is_down_at_the_start_fails_what_waited_long_enough_and_nothing_else",
            ),
        ),
        row(
            "F-16",
            "the queue hangs under a service manager's watchdog",
            "the watchdog is fed by decisions and not by the loop, so it starves",
            shown(
                "orders/test_service_manager",
                "a_queue_task_that_has_ended_feeds_nothing",
                "a_queue_whose_every_decision_fails_feeds_nothing",
                "the_watchdog_is_fed_well_within_its_time_as_long_as_the_queue_decides",
            ),
        ),
    ),
)
