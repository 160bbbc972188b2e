"""The disk and the file on it."""

from __future__ import annotations

from tests.faults.table import Part, row, shown

DISK, OPENING, WRITER = "storage/test_faults", "storage/test_opening", "storage/test_writer"

PART = Part(
    name="The store",
    rows=(
        row(
            "F-52",
            "another program holds the lock",
            "what must be durable is refused, the rest is kept and written later",
            shown(
                DISK,
                "another_programs_lock_refuses_what_must_be_durable_and_keeps_the_rest",
                "a_connection_that_is_well_is_kept_through_a_lock",
            ),
            shown(OPENING, "a_database_locked_by_another_program_is_refused"),
        ),
        row(
            "F-53",
            "the disk is full, wherever it fills up",
            "nothing is acknowledged that is not written; the reserve lets old rows go",
            shown(
                DISK,
                "a_full_disk_refuses_without_acknowledging_wherever_it_fills_up",
                "on_a_full_disk_the_reserve_is_given_up_once_so_that_pruning_can_run",
                "a_real_write_that_fails_halfway_loses_no_acknowledged_row",
            ),
            shown("jobs/test_feeding", "while_the_disk_fails_nothing_is_accepted_and_a_result_waits_until_it_can_be_kept"),
            shown("worker/test_store", "requests_go_on_while_the_disk_fails_and_are_logged_when_it_is_well"),
        ),
        row(
            "F-54",
            "the file becomes read-only, moves away or loses its directory",
            "as with a full disk; never in secret and never in memory only",
            shown(DISK, "a_file_that_was_moved_away_is_not_written_to_in_secret", "a_file_that_was_replaced_is_left_alone"),
            shown(OPENING, "a_database_that_can_only_be_read_is_refused", "a_directory_that_cannot_be_made_is_refused"),
            shown("worker/test_store", "a_file_that_vanishes_stops_nobody_and_nothing_is_lost_once_it_is_back"),
        ),
        row(
            "F-55",
            "an I/O error at the first, second, ... operation",
            "no acknowledged row is lost or doubled, whichever it is",
            shown(DISK, "a_disk_that_fails_at_any_operation_loses_no_acknowledged_row_and_doubles_none"),
            shown(OPENING, "a_disk_that_fails_at_any_operation_of_a_start_leaves_nothing_half_made"),
            shown(
                "reliability/test_io_errors",
                "wherever_the_disk_fails_a_job_is_accepted_and_there_or_refused_and_welcome_again",
                "wherever_the_disk_fails_from_the_first_start_on_the_file_stays_sound",
            ),
            shown("dst/test_worlds", "no_world_breaks_a_rule"),
        ),
        row(
            "F-56",
            "a sync fails",
            "the connection is not trusted any more: opened anew, the file checked",
            shown(DISK, "after_a_failed_sync_the_connection_is_opened_anew_and_the_database_checked"),
        ),
        row(
            "F-57",
            "a damaged page, a cut or lost write-ahead log, an empty file, another version, no database at all",
            "refused with what to do, and left alone",
            shown(
                OPENING,
                "a_damaged_page_is_refused_with_instructions",
                "a_write_ahead_log_that_was_cut_off_loses_only_its_end",
                "a_write_ahead_log_without_its_database_is_not_thrown_away",
                "a_file_cut_off_to_nothing_is_not_taken_for_a_new_one",
                "a_newer_schema_is_refused_and_left_alone",
                "a_file_that_is_no_database_is_refused_and_left_alone",
            ),
        ),
        row(
            "F-58",
            "each commit takes long",
            "the loop goes on; everything that waits shares the next sync",
            shown(WRITER, "the_loop_goes_on_while_the_disk_is_slow", "everything_that_waits_during_one_sync_shares_the_next"),
        ),
        row(
            "F-59",
            "a task is cancelled in the middle of a statement",
            "the statement finishes or rolls back as one",
            shown(
                WRITER, "cancelling_who_waits_leaves_the_statement_to_finish", "a_failing_function_fails_alone_and_leaves_nothing_behind"
            ),
        ),
        row(
            "F-60",
            "the owner copies the live file or looks in with a shell",
            "a backup is whole, nobody is disturbed",
            shown(
                "storage/test_store", "a_backup_of_a_live_store_is_whole_and_private", "an_owner_who_looks_in_with_a_shell_disturbs_nobody"
            ),
        ),
        row(
            "F-61",
            "very many old rows",
            "they go in small steps between the work",
            shown("storage/test_retention", "many_old_rows_go_in_many_small_steps"),
            shown(WRITER, "upkeep_goes_on_step_by_step_between_the_work_until_it_is_done"),
        ),
    ),
)
