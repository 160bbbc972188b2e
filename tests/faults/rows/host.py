"""The card and the machine."""

from __future__ import annotations

from tests.faults.table import Part, in_every_phase, row, shown

WATCH, LOGS, PROCESSES = "gpu/test_gpu_watch", "observability/test_logs", "faults/test_processes"

PART = Part(
    name="The card and the machine",
    rows=(
        row(
            "F-84",
            "no driver, a driver that does not start, hangs, lies, loses the card",
            "unknown instead of wrong, bounded by a thread and a time, told once",
            shown(
                WATCH,
                "without_a_driver_there_is_one_quiet_word_and_hardly_a_question",
                "a_card_that_is_lost_and_comes_back_is_told_of_once_each_and_counts_again",
                "a_reading_that_never_ends_delays_nobody",
            ),
            shown("gpu/test_gpu_thread", "a_driver_that_hangs_costs_one_thread_and_the_timeout", "the_loop_goes_on_while_a_driver_hangs"),
            shown("gpu/test_nvml", "a_driver_that_does_not_start_says_why", "memory_that_cannot_be_true_is_unknown"),
        ),
        row(
            "F-85",
            "another program takes GPU memory",
            "what others hold is not there for models",
            shown(
                WATCH,
                "memory_that_a_game_holds_makes_a_model_go_that_could_have_stayed",
                "where_there_is_no_room_for_both_one_model_is_loaded_at_a_time",
            ),
            shown("scheduling/test_memory", "memory_that_others_hold_is_not_there_for_models_1"),
        ),
        row(
            "F-86",
            "a model computes on the CPU in secret",
            "told, shown, and given the time that it takes",
            shown("gpu/test_drift", "a_model_wholly_on_the_cpu_is_worth_a_word_only_where_there_is_a_gpu"),
            shown("emulator/test_gateway_heals", "a_model_that_is_split_with_the_cpu_is_reported_as_such"),
        ),
        row(
            "F-87",
            "no descriptors are left",
            "it serves again when there are some; the file was open before",
            shown(PROCESSES, "a_process_out_of_descriptors_serves_again_when_there_are_some"),
            shown("security/test_connections", "a_connection_too_many_is_503_in_the_dialect_and_counted_and_a_free_place_is_taken"),
        ),
        row(
            "F-88",
            "memory is short",
            "everything that grows has a bound: bodies, buffers, queues, histories",
            shown(
                "worker/test_submitting",
                "each_lane_has_its_own_depth",
                "one_more_than_may_wait_is_refused_with_a_time_to_come_back_and_changes_nothing",
            ),
            shown("worker/test_slow_readers", "what_is_held_for_a_reader_never_grows_past_the_limit_and_one_chunk"),
            shown("api/test_inference", "a_body_above_the_cap_is_refused_however_it_is_sent"),
            left_out="There is no shedding by bytes in flight: depth times the largest body is the bound, and the owner sets both.",
        ),
        row(
            "F-89",
            "the loop stands still",
            "told once with its length; nothing that came meanwhile is given up",
            in_every_phase("loop stands still"),
            shown("alerts/test_monitors", "a_hold_up_of_the_loop_is_told_once_with_its_length"),
            shown(
                "faults/test_stalls",
                "a_stream_that_went_on_while_the_loop_stood_still_is_not_idle",
                "a_whole_answer_that_came_while_the_loop_stood_still_is_an_answer",
                "a_reader_that_was_about_to_read_when_the_loop_stood_still_is_not_dropped",
            ),
        ),
        row(
            "F-90",
            "the threads are all busy",
            "names, the disk and the card have threads of their own",
            shown("alerts/test_poster", "names_are_looked_up_beside_the_threads_that_requests_use"),
            shown("storage/test_writer", "the_loop_goes_on_while_the_disk_is_slow"),
            shown("gpu/test_gpu_thread", "a_card_is_read_in_one_thread_that_is_not_the_loops"),
        ),
        row(
            "F-91",
            "the log's disk is full, its reader gone or asleep",
            "lines are dropped and counted; nobody waits",
            shown(
                LOGS,
                "a_blocked_output_delays_nobody_and_its_losses_are_told_later",
                "a_closed_output_drops_and_counts",
                "a_process_whose_stdout_nobody_reads_still_exits_cleanly",
            ),
        ),
        row(
            "F-92",
            "others take the processor",
            "slow and right (in `make reliability`)",
            shown(PROCESSES, "a_process_that_shares_one_core_with_four_others_is_slow_and_right"),
        ),
        row(
            "F-93",
            "no home, no temporary directory, the C locale, an open umask, an unknown zone",
            "it starts, and its file is private",
            shown(PROCESSES, "odd_surroundings_keep_it_neither_from_serving_nor_its_file_private"),
            shown("storage/test_opening", "a_new_database_is_private_to_its_user"),
        ),
    ),
)
