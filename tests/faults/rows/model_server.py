"""The model server refuses, breaks, hangs, lies or floods."""

from __future__ import annotations

from tests.faults.table import Part, in_every_phase, row, shown

FAULTS, HTTP, HEALS, LOADING = (
    "worker/test_backend_faults",
    "backends/test_data_path",
    "emulator/test_gateway_heals",
    "worker/test_loading",
)
NONSENSE = "faults/test_model_server"

PART = Part(
    name="The model server",
    rows=(
        row(
            "F-17",
            "it refuses, is killed, restarts",
            "requests wait as long as they may; nobody else is sent to it meanwhile",
            in_every_phase("call refuse", "two calls refuse", "model server killed and back"),
            shown(
                "worker/test_backend_killed",
                "a_backend_that_is_killed_under_a_running_call_serves_it_when_it_is_back",
                "a_backend_that_is_killed_and_stays_away_fails_everybody_when_their_patience_ends",
                "a_backend_that_is_killed_during_a_load_is_loaded_again_when_it_is_back",
            ),
        ),
        row(
            "F-18",
            "it accepts and never answers",
            "the model is unloaded and loaded again, the request sent once more, then given up; one that works is left alone",
            in_every_phase("call silent", "two calls silent"),
            shown(
                FAULTS,
                "a_model_that_stays_silent_is_unloaded_loaded_again_and_asked_once_more",
                "a_model_that_stays_silent_twice_fails_the_request_and_serves_the_next",
                "a_whole_answer_gets_twice_the_time_that_its_length_can_take_and_its_healthy_model_stays_loaded",
            ),
        ),
        row(
            "F-19",
            "a model hangs while every health route answers",
            "seen by the missing progress, healed by a reload, the order kept",
            in_every_phase("unload stuck"),
            shown(HEALS, "a_leaked_slot_costs_the_next_stream_one_first_byte_timeout_and_a_reload"),
            shown(FAULTS, "a_slot_that_a_cut_stream_took_with_it_is_missed_within_10_s"),
            shown(
                LOADING,
                "a_model_that_will_not_leave_is_told_again_before_anybody_loses_their_place",
                "a_model_that_never_leaves_fails_those_who_need_another_with_a_time_to_come_back",
            ),
        ),
        row(
            "F-20",
            "500, 502 or 503 before a byte",
            "a 503 is tried once more unseen; its own words reach the caller in the caller's dialect",
            in_every_phase("call server_error", "two calls server_error"),
            shown(HEALS, "an_ollama_that_is_busy_for_a_moment_is_asked_once_more_and_the_caller_sees_nothing_of_it"),
            shown(FAULTS, "an_error_status_goes_to_the_caller_as_it_is_and_counts_as_failed"),
        ),
        row(
            "F-21",
            "404: the model is gone",
            "a 404 in the caller's dialect, not tried again, the server not taken for down; what stays in memory keeps no other model out",
            shown("api/test_inference", "a_model_that_is_not_installed_is_404_in_the_words_of_ollama_and_reaches_no_queue"),
            shown(
                LOADING,
                "a_model_that_is_gone_from_the_disk_is_not_asked_for_twice",
                "a_model_that_was_deleted_while_it_was_in_memory_keeps_no_other_from_coming",
            ),
            shown(HEALS, "a_model_deleted_while_in_memory_gives_way_to_the_one_that_it_was_made_from"),
            in_every_phase("load not_found"),
        ),
        row(
            "F-22",
            "out of memory, the runner dies",
            "one more try, then an answer; no reservation is left and no load is repeated for ever",
            in_every_phase("load fail", "call runner_died", "two calls runner_died"),
            shown(FAULTS, "an_answer_that_the_model_died_over_is_asked_for_once_more_and_then_told_in_the_servers_words"),
            shown(HEALS, "a_runner_that_dies_over_a_whole_answer_is_asked_once_more_and_the_caller_sees_nothing_of_it"),
            shown(
                "scheduling/test_memory",
                "a_load_that_fails_is_tried_once_more_after_two_seconds",
                "a_load_that_fails_twice_gives_its_waiters_up_and_serves_the_others",
                "a_load_that_failed_leaves_no_reservation",
            ),
            shown(HEALS, "the_request_after_a_runner_died_works"),
        ),
        row(
            "F-23",
            "a load never ends",
            "given up at its time; other models are held up no longer",
            in_every_phase("load never"),
            shown(LOADING, "a_load_that_never_ends_holds_other_models_up_no_longer_than_its_timeout"),
            shown(HEALS, "a_load_that_never_ends_is_a_503_within_the_swap_timeout_and_the_other_model_is_served"),
        ),
        row(
            "F-24",
            "a load is complete after we gave it up; a load that lies",
            "what is really there is used",
            in_every_phase("load lie"),
            shown(LOADING, "a_model_that_is_there_after_our_timeout_is_found_and_used", "a_load_that_lies_is_a_failure"),
        ),
        row(
            "F-25",
            "200, then an error line",
            "a failure in the stream, in the right form",
            in_every_phase("call error_line", "two calls error_line"),
            shown(FAULTS, "an_error_line_at_the_end_of_a_stream_goes_to_the_caller_as_it_is"),
            shown(
                "wire/test_captures_through_gateway",
                "a_runner_that_dies_in_mid_stream_is_told_in_the_stream_even_where_ollama_says_nothing",
            ),
        ),
        row(
            "F-26",
            "garbage, a page, bytes, nothing",
            "an error, never a completed answer",
            shown(NONSENSE, "what_is_no_answer_is_an_error_of_the_model_server_and_never_a_completed_one"),
            shown(HTTP, "what_is_no_plain_answer_is_a_protocol_error"),
            shown(FAULTS, "a_whole_answer_without_a_body_is_no_answer_and_is_asked_for_again"),
        ),
        row(
            "F-27",
            "half a line, half a character, a byte at a time",
            "the same answer however it is cut; a cut one is an error",
            shown("dialects/test_framing", "how_a_stream_is_cut_into_chunks_never_matters"),
            shown(HTTP, "chunks_come_as_the_server_made_them_and_in_their_order"),
            shown(NONSENSE, "what_is_no_answer_is_an_error_of_the_model_server_and_never_a_completed_one"),
        ),
        row(
            "F-28",
            "it hangs up in mid-stream: FIN, reset, too short, no last chunk",
            "a truncated answer is never told as a complete one",
            in_every_phase(
                "call gone_mid_stream",
                "two calls gone_mid_stream",
                "call gone_before_head",
                "two calls gone_before_head",
                "call no_done",
                "two calls no_done",
            ),
            shown(
                HTTP,
                "a_body_that_breaks_its_framing_gives_what_came_and_then_an_error",
                "a_reset_before_the_head_or_in_mid_body_is_gone",
            ),
            shown(HEALS, "a_stream_without_its_end_is_ended_with_an_error_in_its_own_dialect"),
        ),
        row(
            "F-29",
            "a line without end",
            "cut off",
            shown(
                HTTP,
                "a_streamed_line_without_end_is_cut_off_and_a_long_one_of_a_whole_answer_is_not",
                "a_body_larger_than_any_answer_is_cut_off",
            ),
        ),
        row(
            "F-30",
            "it is slow, or falls silent in the middle",
            "silence has a limit of its own; slowness does not end an answer",
            in_every_phase("call slow", "two calls slow", "call stall", "two calls stall"),
            shown(
                FAULTS,
                "a_slow_stream_that_keeps_coming_is_left_alone",
                "a_stream_that_falls_silent_in_the_middle_ends_within_twice_the_idle_timeout",
            ),
        ),
        row(
            "F-31",
            "fifty thousand tiny chunks",
            "all of them, in order",
            shown(HTTP, "chunks_come_as_the_server_made_them_and_in_their_order"),
        ),
        row(
            "F-32",
            "two ends, words after the end, absurd counts",
            "an end is an end; numbers that cannot be teach nothing and break nothing",
            shown(
                NONSENSE,
                "an_end_that_says_odd_things_is_an_end_and_its_numbers_do_no_harm",
                "what_is_no_answer_is_an_error_of_the_model_server_and_never_a_completed_one",
            ),
        ),
        row(
            "F-33",
            "it answers a cancelled call later",
            "nobody gets that answer",
            shown(HTTP, "a_late_answer_to_a_cancelled_call_reaches_nobody"),
            shown(HTTP, "an_answer_that_was_not_read_to_the_end_ends_its_connection"),
        ),
        row(
            "F-34",
            "it goes on with a prompt that nobody waits for",
            "the next caller waits or gets a reloaded model",
            shown(HEALS, "a_prompt_that_is_read_for_nobody_delays_the_next_caller_until_the_model_is_reloaded"),
        ),
        row(
            "F-35",
            "somebody else loads, drops or evicts a model",
            "what is there is looked at and counted",
            shown("gpu/test_drift", "every_change_by_somebody_else_is_counted_and_shown_within_the_interval"),
            shown(
                FAULTS,
                "a_model_that_somebody_else_loaded_is_used_as_it_is",
                "a_restart_that_emptied_the_memory_is_noticed_within_the_check_interval",
            ),
            shown("scheduling/test_order", "a_model_unloaded_behind_our_back_at_the_instant_of_an_arrival_is_loaded_again"),
        ),
        row(
            "F-36",
            "slow or huge headers, a redirect",
            "refused; the target of a redirect is never called",
            shown(
                HTTP,
                "an_endless_head_is_cut_off",
                "a_body_that_breaks_its_framing_gives_what_came_and_then_an_error",
                "a_redirect_is_refused_and_its_target_never_called",
            ),
        ),
        row(
            "F-37",
            "a compressed body although none was asked for",
            "refused and not inflated",
            shown(HTTP, "what_is_no_plain_answer_is_a_protocol_error"),
        ),
        row(
            "F-38",
            "unknown fields, an absurd date, another version",
            "passed on as they came",
            shown(NONSENSE, "an_end_that_says_odd_things_is_an_end_and_its_numbers_do_no_harm"),
            shown(HTTP, "a_recorded_answer_comes_through_byte_for_byte_and_chunk_by_chunk"),
        ),
    ),
)
