"""The wall clock and the calendar."""

from __future__ import annotations

from tests.faults.table import Part, row, shown

HOURS, INSTANTS = "config/test_active_hours", "faults/test_instants"

PART = Part(
    name="Time",
    rows=(
        row(
            "F-62",
            "the wall clock jumps: an hour, ten years, 1970",
            "waits, durations and limits do not notice, announced tasks do; a day's money is not given out twice; no message is put off",
            shown(INSTANTS, "a_wall_clock_that_jumps_changes_nothing_for_anybody_who_waits_or_runs"),
            shown("cloud/test_purse", "a_clock_that_jumps_never_opens_a_day_twice"),
            shown("worker/test_store", "a_clock_that_was_set_back_lengthens_no_window"),
            shown("test_clock", "ids_never_repeat"),
            shown("observability/test_logs", "an_instant_that_no_calendar_shows_costs_one_line_and_not_the_log"),
            shown("worker/test_announcements", "a_task_is_due_by_the_calendar_though_the_clock_was_set_or_the_machine_slept"),
            shown("jobs/test_webhooks", "a_wall_clock_that_is_set_back_puts_off_no_message"),
        ),
        row(
            "F-63",
            "the skipped and the repeated hour, in several zones",
            "every minute is classified once, by the wall",
            shown(
                HOURS,
                "every_minute_around_a_clock_change_is_classified_by_the_wall_clock",
                "hours_that_begin_inside_the_skipped_hour_begin_at_the_jump",
                "a_boundary_inside_the_repeated_hour_is_crossed_twice",
                "a_task_in_the_repeated_hour_comes_once",
            ),
            shown("cloud/test_purse", "a_day_with_a_clock_change_has_one_budget_and_no_more"),
        ),
        row(
            "F-64",
            "hours over midnight, of a whole day, of no length",
            "the start belongs to them, the end does not",
            shown(
                HOURS,
                "the_second_before_a_boundary_belongs_to_the_old_mode_and_the_boundary_to_the_new",
                "a_window_whose_end_is_its_start_is_the_whole_day",
                "text_that_is_no_window_is_refused",
            ),
        ),
        row(
            "F-65",
            "active hours begin or end while something runs, is stopped or swapped",
            "at the beginning what keeps the house waiting is stopped; from the end on nobody is",
            shown(
                INSTANTS,
                "from_the_instant_at_which_active_hours_end_nobody_is_stopped",
                "a_swap_on_which_active_hours_end_is_finished_and_serves_both",
            ),
            shown("worker/test_preempting", "internal_work_that_waits_when_active_hours_begin_stops_the_call_at_that_instant"),
        ),
    ),
)
