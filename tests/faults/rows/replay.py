"""Streams that were interrupted and go on."""

from __future__ import annotations

from tests.faults.table import Part, row, shown

DIVERGENCE, REPLAY, LIVE = "dialects/test_replay_divergence", "dialects/test_replay", "worker/test_replaying"

PART = Part(
    name="Resumed streams",
    rows=(
        row(
            "F-107",
            "the second run says something else, anywhere",
            "an error worth a retry, and not one byte of it",
            shown(
                DIVERGENCE,
                "a_run_that_differs_anywhere_gives_its_whole_answer_or_not_one_byte",
                "what_the_caller_has_of_a_letter_must_be_the_beginning_of_the_second_runs_letter",
                "the_first_different_letter_ends_the_comparison_wherever_it_is",
                "half_a_call_with_other_arguments_is_another_answer_although_a_key_in_them_is_called_id",
            ),
            shown(LIVE, "nothing_of_another_answer_is_ever_sent", "no_wrong_byte_reaches_anybody_over_many_interruptions"),
        ),
        row(
            "F-108",
            "the second run ends early, errs or is cut",
            "another answer, or a fault of the model server",
            shown(DIVERGENCE, "a_run_that_ends_before_it_has_said_everything_again_is_refused"),
            shown(
                LIVE,
                "a_second_run_that_ends_too_soon_counts_as_another_answer",
                "a_backend_that_dies_during_the_replay_is_asked_once_more",
                "an_error_status_of_the_second_run_never_becomes_part_of_the_answer",
            ),
        ),
        row(
            "F-109",
            "the second run is the same, cut differently",
            "it goes on without a gap or a repetition",
            shown(
                REPLAY,
                "any_answer_interrupted_anywhere_and_often_is_read_as_one_valid_stream",
                "any_unicode_text_survives_any_interruption",
                "every_single_byte_is_a_place_to_go_on_from",
            ),
            shown(LIVE, "an_interrupted_stream_goes_on_where_it_stopped_as_one_valid_stream"),
        ),
    ),
)
