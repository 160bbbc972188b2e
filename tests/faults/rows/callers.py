"""Callers leave, stall, repeat themselves or send what they should not."""

from __future__ import annotations

from tests.faults.table import Part, in_every_phase, row, shown

LEAVING, CONNECTIONS, SERVER = "wire/test_leaving", "faults/test_connections", "api/test_server"
CANCELLING = "worker/test_cancelling"

PART = Part(
    name="Callers",
    rows=(
        row(
            "F-39",
            "a caller leaves the queue",
            "never sent to the model server; a job stays",
            in_every_phase("all callers leave"),
            shown(LEAVING, "who_leaves_the_queue_is_never_sent_to_the_model_server"),
            shown("jobs/test_feeding", "a_caller_who_leaves_during_the_commit_leaves_a_job_that_runs"),
        ),
        row(
            "F-40",
            "a caller leaves while it is served, streaming or not, before or after the first byte",
            "the connection to the model server is closed and the slot is free",
            shown(
                LEAVING,
                "leaving_in_mid_stream_closes_the_connection_to_the_model_server",
                "leaving_before_a_whole_answer_closes_the_connection_to_the_model_server",
                "leaving_while_the_prompt_is_read_closes_the_connection_to_the_model_server",
                "a_hundred_callers_who_leave_at_any_moment_leave_no_task_and_no_connection_behind",
            ),
            shown("cloud/test_faults", "whoever_leaves_ends_the_call_at_once"),
        ),
        row(
            "F-41",
            "half-close",
            "counts as leaving",
            shown("api/test_leaving", "a_half_closed_connection_is_a_caller_who_has_left"),
        ),
        row(
            "F-42",
            "a caller leaves in the tick of completion",
            "one end",
            shown("worker/test_races", "completion_and_cancel_in_one_tick_have_one_winner"),
        ),
        row(
            "F-43",
            "ten thousand wait and all leave at once",
            "gone at once, and those who run go on",
            shown("faults/test_instants", "ten_thousand_who_wait_and_leave_at_once_are_gone_at_once"),
            shown(LEAVING, "ten_thousand_preemptions_and_cancels_leave_nothing_behind"),
        ),
        row(
            "F-44",
            "a reader is slow or stands still",
            "bounded memory, then dropped, and its slot goes to the next",
            shown(
                "worker/test_slow_readers",
                "what_is_held_for_a_reader_never_grows_past_the_limit_and_one_chunk",
                "a_reader_that_stands_still_is_dropped_after_the_deadline_and_its_place_goes_to_the_next",
            ),
            shown(LEAVING, "a_reader_that_stands_still_loses_its_slot_to_the_next_after_the_write_deadline"),
        ),
        row(
            "F-45",
            "a body that is slow, short, long, endless, or waits to be asked for",
            "a deadline, a refusal or an answer; never a second request",
            shown(
                "api/test_deadlines",
                "a_body_that_stops_coming_ends_the_connection_and_reaches_no_queue",
                "headers_that_do_not_come_in_time_end_the_connection",
            ),
            shown(SERVER, "a_broken_chunk_in_a_body_ends_the_connection"),
            shown(
                CONNECTIONS,
                "who_waits_to_be_told_to_go_on_is_told",
                "what_follows_a_body_longer_than_it_said_is_no_request_and_ends_the_connection",
            ),
            shown("api/test_inference", "a_body_above_the_cap_is_refused_however_it_is_sent"),
        ),
        row(
            "F-46",
            "one idempotency key of jobs or batches: again, at the same moment, with another body, of another caller, after the end, "
            "after its time, answered with a job of the same `job_key`",
            "one job; 409, 422, the kept result, another job, a new job, that job also after its end",
            shown(
                "jobs/test_routes",
                "the_same_idempotency_key_is_the_same_job_and_another_body_is_422",
                "the_idempotency_key_of_another_caller_is_another_job",
                "of_requests_with_one_key_at_the_same_moment_one_is_taken",
            ),
            shown(
                "jobs/test_table",
                "an_idempotency_key_stands_for_one_job_of_its_caller_for_a_day",
                "an_idempotency_key_stands_for_an_ended_job_too_and_another_body_is_refused",
                "a_key_that_was_answered_with_the_job_of_a_job_key_stands_for_it_after_its_end_too",
            ),
            shown(
                "batches/test_keys",
                "a_key_stands_for_one_batch_for_a_day_and_for_as_long_as_that_is_open",
                "a_key_with_another_body_is_refused_and_starts_nothing",
                "two_requests_with_one_key_at_the_same_moment_are_a_conflict_and_later_one_batch",
            ),
            shown("batches/test_routes", "a_batch_is_taken_once_for_an_idempotency_key_whatever_has_become_of_it"),
        ),
        row(
            "F-47",
            "a client repeats a request while the first one waits",
            "with a key one job; without one two requests",
            shown(CONNECTIONS, "the_same_request_sent_twice_without_a_key_is_two_requests"),
            shown("jobs/test_feeding", "two_requests_with_one_idempotency_key_at_the_same_moment_are_a_conflict_and_later_one_job"),
        ),
        row(
            "F-48",
            "cancel in every state, twice, and of somebody else's",
            "one end; what is another's does not exist",
            shown(
                CANCELLING,
                "it_is_given_up_at_once_in_every_phase_and_again_is_no_error",
                "cancelling_twice_is_the_same_as_once",
                "a_request_id_cancels_all_of_its_owners_items_and_nobody_elses",
            ),
            shown("jobs/test_feeding", "cancelling_races_with_every_moment_of_a_job_and_there_is_one_end"),
            shown("api/test_control", "requests_of_others_cannot_be_told_from_unknown_ones"),
        ),
        row(
            "F-49",
            "a body of the largest size, ten thousand messages, absurd limits",
            "read, or refused in the caller's dialect with what is wrong",
            shown(
                "api/test_inference", "hostile_json_is_a_400_in_the_shape_of_the_dialect", "a_large_body_is_parsed_while_others_are_served"
            ),
            shown(
                "dialects/test_envelope",
                "more_than_ten_thousand_messages_or_inputs_are_refused",
                "the_output_limit_is_read_where_ollama_reads_it",
                "a_body_that_does_not_fit_the_route_is_refused_with_ollamas_text",
            ),
        ),
        row(
            "F-50",
            "HTTP/1.0, a connection used again after an error, two requests in one packet, offers to upgrade",
            "answered in order, or refused and closed",
            shown(
                SERVER,
                "a_caller_of_http_1_0_gets_each_piece_of_a_stream_as_it_comes_unframed_and_the_end_of_the_connection",
                "a_stream_that_never_ends_reaches_a_caller_of_http_1_0",
            ),
            shown(
                CONNECTIONS,
                "two_requests_in_one_packet_are_answered_in_their_order",
                "a_connection_goes_on_after_a_refusal",
                "an_offer_of_http_2_is_not_taken_up_and_the_request_is_answered",
                "what_is_in_one_packet_with_many_offers_of_http_2_is_all_answered",
                "a_body_that_follows_an_offer_of_http_2_is_read",
            ),
        ),
        row(
            "F-51",
            "a thousand connections that come and go",
            "no descriptor is left",
            shown(CONNECTIONS, "a_thousand_connections_that_come_and_go_leave_nothing_behind"),
        ),
    ),
)
