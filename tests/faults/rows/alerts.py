"""Where alerts go."""

from __future__ import annotations

from tests.faults.table import Part, row, shown

TARGET, HOUSE, POSTER = "alerts/test_delivery", "alerts/test_house", "alerts/test_poster"

PART = Part(
    name="Alerts",
    rows=(
        row(
            "F-66",
            "429, with any advice or none",
            "the advice is kept, one post at a time, a bounded queue, losses counted",
            shown(
                TARGET,
                "a_429_that_says_nothing_usable_waits_the_default",
                "the_longest_advice_holds_but_no_answer_silences_a_target_for_more_than_an_hour",
                "an_answer_that_asks_for_time_gets_it_and_then_the_same_message",
                "ten_thousand_alerts_while_the_target_stalls_are_bounded_and_counted",
            ),
        ),
        row(
            "F-67",
            "the webhook is gone",
            "one post, then none until the configuration is read again",
            shown(TARGET, "a_refused_message_is_given_up_and_a_webhook_that_is_gone_gets_no_more_until_the_configuration_is_read_again"),
        ),
        row(
            "F-68",
            "errors, silence, resets",
            "a bounded number of tries, further and further apart; requests notice nothing",
            shown(TARGET, "a_target_that_keeps_failing_gets_a_bounded_number_of_tries_further_and_further_apart"),
            shown(POSTER, "a_target_that_says_nothing_times_out", "a_target_that_hangs_up_is_broken"),
            shown(HOUSE, "requests_go_on_while_every_target_stalls_under_ten_thousand_alerts"),
        ),
        row(
            "F-69",
            "the name is unknown, or the name server hangs",
            "looked up beside the threads of requests",
            shown(
                POSTER,
                "a_name_that_nobody_knows_is_a_failure_of_dns",
                "names_are_looked_up_beside_the_threads_that_requests_use",
                "a_name_server_that_hangs_costs_one_thread_however_often_it_is_asked",
            ),
        ),
        row(
            "F-70",
            "ten thousand events",
            "a handful of posts that say how many",
            shown(TARGET, "ten_thousand_alerts_while_the_target_stalls_are_bounded_and_counted"),
            shown(TARGET, "a_stream_of_alerts_is_never_more_than_twenty_posts_a_minute"),
        ),
        row(
            "F-71",
            "alerting fails; the end comes with alerts waiting",
            "no alert about alerts; two seconds at most",
            shown("alerts/test_rules", "there_is_no_alert_about_alerts"),
            shown(
                TARGET,
                "what_waits_at_the_end_is_sent_in_one_message_and_a_post_that_is_out_is_not_sent_twice",
                "a_target_that_stalls_holds_up_the_end_for_two_seconds_at_most",
            ),
        ),
    ),
)
