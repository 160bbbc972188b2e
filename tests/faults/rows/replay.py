"""Streams that were interrupted and go on."""

from __future__ import annotations

from tests.faults.table import Part, row, shown

DIVERGENCE, REPLAY, LIVE = "dialects/test_replay_divergence", "dialects/test_replay", "worker/test_replaying"
CONTINUING, ASKING = "dialects/test_continuing", "worker/test_continuing"

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
                "the_first_different_letter_ends_the_comparison_wherever_it_is",
                "a_call_with_other_arguments_is_another_answer_although_a_key_in_them_is_called_id",
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
        row(
            "F-110",
            "an answer is cut inside a letter or a stop sequence, at its limit, before its first or after its last word",
            "it goes on without a gap or a repetition",
            shown(
                CONTINUING,
                "every_byte_of_a_stream_is_a_place_to_go_on_from",
                "any_text_goes_on_from_any_place_also_with_stop_sequences",
                "a_stop_sequence_across_the_cut_ends_the_answer",
                "a_budget_that_is_used_up_ends_the_answer_without_another_word",
            ),
            shown(
                ASKING,
                "no_character_is_lost_doubled_or_out_of_order_over_many_interruptions",
                "before_the_first_word_there_is_nothing_to_continue_and_any_answer_will_do",
                "a_rest_without_a_word_is_an_end",
            ),
        ),
        row(
            "F-111",
            "the prompt cannot be rendered, slowly, or not as before; the context has no room for the text so far",
            "the stream is replayed, or finishes first",
            shown(
                ASKING,
                "a_server_that_renders_nothing_is_asked_once_and_its_streams_are_replayed_or_finish",
                "a_server_that_is_slow_to_render_holds_up_nobody_and_is_asked_again",
                "a_template_that_was_changed_meanwhile_is_not_continued_with",
                "a_text_that_the_context_has_no_room_for_is_replayed",
            ),
        ),
        row(
            "F-112",
            "the model server fails or is interrupted again while it says the rest, or says something else",
            "once more before the rest begins, after that an error behind right text",
            shown(
                ASKING,
                "a_server_that_dies_before_the_rest_begins_is_asked_once_more",
                "a_rest_that_breaks_off_ends_the_stream_with_an_error_after_right_text",
                "it_may_be_interrupted_again_and_again",
            ),
            shown(CONTINUING, "something_else_than_was_asked_from_is_refused_before_anything_comes_out"),
        ),
        row(
            "F-113",
            "a caller leaves while its stream is continued",
            "the GPU is free at once",
            shown(
                ASKING,
                "a_caller_who_leaves_during_the_rest_frees_the_model",
                "a_caller_who_leaves_while_the_prompt_is_rendered_frees_the_model",
            ),
        ),
    ),
)
