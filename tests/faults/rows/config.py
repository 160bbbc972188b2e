"""The configuration file and its readings."""

from __future__ import annotations

from tests.faults.table import Part, in_every_phase, row, shown

RELOADING, WATCHING, PLAN, LIVE, DOCUMENT = (
    f"config/test_{name}" for name in ("reloading", "reload_watching", "reload_plan", "reload_live", "document")
)

PART = Part(
    name="The configuration",
    rows=(
        row(
            "F-72",
            "a file that is wrong, empty, binary, huge, hostile",
            "all problems are named, the old settings stay, the next good file counts",
            shown(
                DOCUMENT,
                "an_alias_bomb_costs_nothing",
                "a_damaged_file_is_either_read_or_refused_with_a_config_error",
                "a_duplicate_key_is_told_with_the_line_of_the_first",
            ),
            shown(
                "config/test_loading",
                "all_problems_come_at_once_in_the_order_of_the_file",
                "a_file_that_is_no_text_file_is_refused",
                "the_largest_file_is_read_and_one_byte_more_is_refused",
            ),
            shown(
                RELOADING,
                "a_bad_content_changes_nothing_and_the_good_one_after_it_counts",
                "what_editors_of_other_systems_write_counts",
                "a_file_of_the_largest_size_does_not_hold_the_loop_up",
            ),
        ),
        row(
            "F-73",
            "deleted, unreadable, a directory, behind links, written in steps, touched, written a thousand times",
            "half a file is never in force, and the last whole one is",
            shown(
                WATCHING,
                "every_way_of_saving_is_noticed_again_and_again",
                "a_swapped_symlink_in_the_style_of_kubernetes_is_noticed_again_and_again",
                "a_file_that_is_moved_away_is_told_once_and_one_that_is_back_counts",
                "our_own_reading_and_a_touch_lead_to_no_reload",
            ),
            shown(
                PLAN,
                "a_file_that_is_written_in_steps_is_tried_when_it_is_complete",
                "a_thousand_writes_in_five_seconds_are_few_tries_and_the_last_one_counts",
            ),
            shown(RELOADING, "something_else_in_place_of_the_file_changes_nothing"),
        ),
        row(
            "F-74",
            "valid and dangerous: no keys on an open address, another port, limits of zero",
            "refused, or named as waiting for a restart",
            shown("config/test_keys_and_environment", "listening_beyond_this_machine_needs_keys"),
            shown(RELOADING, "keys_that_wait_for_a_restart_are_named_until_they_are_back"),
            shown("test_rate_limiter", "a_limit_of_zero_refuses_always_and_advises_one_hour"),
        ),
        row(
            "F-75",
            "a reload during a swap, a preemption, a full queue, a start, a stop, another reload",
            "in force at one point; what runs does not notice",
            in_every_phase("reload"),
            shown("faults/test_instants", "a_reload_at_any_instant_changes_nothing_that_it_does_not_say"),
            shown(LIVE, "many_reloads_good_and_bad_under_load_drop_nothing_and_count_exactly", "while_stopping_nothing_is_put_in_force"),
            shown(RELOADING, "a_change_while_the_last_one_is_parsed_is_not_lost"),
        ),
        row(
            "F-76",
            "the queue's limit falls below its length; a key is taken out; a model no longer fits",
            "what was accepted ends well, new requests are refused",
            shown("worker/test_reloading", "a_lower_depth_drops_nobody_and_admits_nobody_until_there_is_room"),
            shown("faults/test_connections", "a_key_that_is_taken_out_ends_nothing_that_was_accepted_and_begins_nothing_more"),
            shown("scheduling/test_memory", "what_waits_and_could_never_be_loaded_after_a_reload_is_told_so"),
        ),
    ),
)
