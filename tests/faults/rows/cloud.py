"""Claude."""

from __future__ import annotations

from tests.faults.table import Part, row, shown

FAULTS, ADAPTER = "cloud/test_faults", "backends/test_claude"
NAMES = shown(ADAPTER, "every_refusal_has_a_name_of_ours_and_is_asked_once")

PART = Part(
    name="Claude",
    rows=(
        row(
            "F-77",
            "429 with advice",
            "a short pause is waited for, a long one is the caller's",
            NAMES,
            shown(ADAPTER, "the_pause_that_claude_asks_for_is_kept"),
            shown(FAULTS, "a_long_pause_is_the_callers_to_wait_and_nobody_sleeps_through_it"),
        ),
        row(
            "F-78",
            "429 because the account's money is spent",
            "not asked again until a reload, and told",
            NAMES,
            shown(FAULTS, "a_refused_account_is_not_asked_again_until_a_reload"),
        ),
        row(
            "F-79",
            "529, 500, 503",
            "a bounded number of tries, then an error of the caller's dialect",
            NAMES,
            shown(FAULTS, "a_passing_refusal_is_tried_again_unnoticed", "attempts_are_bounded"),
        ),
        row(
            "F-80",
            "401, 403",
            "not asked again; the key shows nowhere",
            NAMES,
            shown(FAULTS, "a_refused_account_is_not_asked_again_until_a_reload"),
            shown("cloud/test_clients_at_claude", "the_key_goes_to_its_address_only_and_shows_nowhere"),
        ),
        row(
            "F-81",
            "400, 413",
            "the caller's to change",
            NAMES,
            shown(FAULTS, "what_the_caller_has_to_change_reaches_the_caller_and_is_not_tried_again"),
        ),
        row(
            "F-82",
            "errors, pings only, no end, unknown or disordered events after the head",
            "an error in the stream; signs of life do not count for ever; what is unknown says nothing",
            shown(ADAPTER, "an_error_inside_a_stream_is_told_by_its_type", "a_cut_connection_is_an_error_and_not_an_end"),
            shown(
                FAULTS,
                "a_stall_ends_even_where_signs_of_life_go_on",
                "a_stream_that_breaks_off_is_an_error_in_every_client_and_is_paid_for",
            ),
            shown("dialects/claude/test_answering", "no_event_whatever_breaks_an_answer", "a_stream_without_its_end_is_no_answer"),
        ),
        row(
            "F-83",
            "a certificate that nobody vouches for, no TLS at all",
            "not a byte of the request is sent",
            shown(
                "faults/test_tls",
                "a_certificate_that_nobody_vouches_for_is_not_talked_to",
                "a_port_without_tls_hears_no_key_in_the_clear",
            ),
        ),
    ),
)
