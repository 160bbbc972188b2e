"""Every fault that Hearth is built for, what must hold when it happens, and the tests that show it; `table.py` reads it.

A row is `key: fault -> what must hold`, then a line for each module under tests/ with the names of its tests without `test_`, the faults of
the phase matrix (`test_phases.py`) after `in every phase`, and after `left out` why no test can show it. Four spaces continue a line.
"""

from __future__ import annotations

TEXT = """
# The gateway dies or is stopped
F-01: kill -9 while jobs wait -> every acknowledged job is there, in order; one key is one job
  reliability/test_failpoints: a_gateway_that_dies_there_keeps_every_promise
  reliability/test_syncing: every_acknowledgement_follows_a_sync_of_its_job
  reliability/test_random_kills: no_job_is_lost_doubled_or_out_of_order_however_often_the_gateway_is_killed_under_load
F-02: kill -9 in mid-stream -> the caller sees a break and never a whole answer, the model server is free, a job runs again
  faults/test_processes: a_kill_in_mid_stream_leaves_nothing_running_and_one_during_an_orderly_stop_loses_no_job
  jobs/test_kill: every_accepted_job_ends_exactly_once_however_often_the_gateway_is_killed
F-03: kill -9 around a swap -> the next process asks what is loaded and assumes nothing
  faults/test_processes: a_kill_in_mid_stream_leaves_nothing_running_and_one_during_an_orderly_stop_loses_no_job
  worker/test_backend_faults: what_is_in_memory_at_the_start_is_adopted_without_a_word
F-04: kill -9 between a result and its record -> before the commit it runs again, after it it does not
  reliability/test_failpoints: a_gateway_that_dies_there_keeps_every_promise
F-05: kill -9 while something is put back -> it is there once, at the front
  reliability/test_failpoints: a_gateway_that_dies_there_keeps_every_promise
  jobs/test_table: a_job_that_is_put_back_starts_again_and_counts_what_counts
F-06: kill -9 in a migration, a checkpoint or while old rows go -> the next start completes or repeats it
  reliability/test_failpoints: a_gateway_that_dies_there_keeps_every_promise
  reliability/test_books: a_process_that_dies_there_keeps_its_books
  storage/test_crash: a_database_survives_being_killed_again_and_again
  storage/test_opening: what_a_first_start_left_when_it_was_killed_is_no_obstacle
F-07: kill -9 during recovery, again and again -> recovery repeats itself and burns no attempt
  reliability/test_failpoints: a_gateway_that_dies_there_keeps_every_promise
  jobs/test_table: recovering_again_and_again_burns_no_attempts_and_touches_no_job_of_this_process
F-08: a job that brings the process down each time it starts -> it is found out and given up, the others are done
  jobs/test_feeding: a_job_that_brings_the_gateway_down_each_time_is_found_out_and_the_others_are_done
  jobs/test_table: a_job_that_was_running_when_the_process_died_too_often_ends_failed
  jobs/test_order: jobs_start_in_their_order
F-09: SIGTERM at rest, queued, loading, in a prompt, in mid-stream, during the start, during a reload -> a proper end for everybody within
    the grace, with open pages too
  reliability/test_sigterm: every_stream_ends_properly_and_the_process_in_time, an_idle_house_with_open_pages_ends_at_once,
    every_accepted_job_is_still_in_the_file
  faults/test_processes: a_signal_during_the_start_ends_it_and_the_next_start_works
  config/test_reloading: on_the_way_out_nothing_is_put_in_force_and_nobody_is_left_waiting
  worker/test_stopping: a_stop_during_a_swap_tells_who_waits_for_it_and_ends
F-10: a second signal; SIGINT; kill -9 during the stop -> the grace ends at once; what is on the disk stays whole
  faults/test_processes: in_odd_surroundings_a_hundred_orders_to_read_the_file_cost_no_request_and_a_second_signal_ends_a_long_grace,
    a_kill_in_mid_stream_leaves_nothing_running_and_one_during_an_orderly_stop_loses_no_job
  cli/test_serve: ctrl_c_ends_a_running_gateway_with_0
  worker/test_stopping: a_hurry_ends_the_grace
F-11: a hundred SIGHUPs -> a few readings of the file, no request noticed
  faults/test_processes: in_odd_surroundings_a_hundred_orders_to_read_the_file_cost_no_request_and_a_second_signal_ends_a_long_grace
  config/test_reload_plan: an_order_is_obeyed_at_once_many_within_a_second_are_two_tries_and_without_a_watch_nothing_else_is_tried
F-12: SIGSTOP for longer than every timeout, then SIGCONT -> what came meanwhile counts; nothing is sent twice
  faults/test_processes: a_process_that_was_stopped_for_a_while_goes_on_as_if_nothing_had_been
  faults/test_stalls: a_first_byte_that_came_while_the_loop_stood_still_is_a_first_byte,
    a_stream_that_went_on_while_the_loop_stood_still_is_not_idle, a_stream_that_is_silent_after_the_hold_up_too_is_given_up_soon,
    after_a_hold_up_everybody_is_served_and_nothing_is_sent_again
F-13: other signals -> a broken pipe is no end
  observability/test_logs: a_pipe_whose_reader_is_gone_drops_and_counts
  left out: SIGUSR1 and the rest keep their default: they end the process, which is then F-01.
F-14: a second instance on the file or the port -> it is refused with a reason, the first goes on
  storage/test_crash: a_second_process_is_refused_while_the_first_lives_and_welcome_after
  storage/test_opening: a_second_instance_is_refused_and_told_who_has_the_file
  cli/test_serve: a_taken_port_ends_with_1_since_it_may_be_free_later_and_names_it
  worker/test_store: a_second_gateway_on_the_same_file_is_refused_and_the_first_goes_on
F-15: the model server comes up long after the gateway -> requests wait as long as they may; it is noticed within a second
  worker/test_backend_faults: a_backend_that_comes_up_late_is_noticed_within_a_second_and_serves_who_still_waits,
    a_backend_that_is_down_at_the_start_fails_what_waited_long_enough_and_nothing_else
F-16: the queue hangs under a service manager's watchdog -> the watchdog is fed by decisions and not by the loop, so it starves
  orders/test_service_manager: a_queue_task_that_has_ended_feeds_nothing, a_queue_whose_every_decision_fails_feeds_nothing,
    the_watchdog_is_fed_well_within_its_time_as_long_as_the_queue_decides

# The model server
F-17: it refuses, is killed, restarts -> requests wait as long as they may; nobody else is sent to it meanwhile
  in every phase: call refuse, two calls refuse, model server killed and back
  worker/test_backend_faults: a_backend_that_is_killed_under_a_running_call_serves_it_when_it_is_back,
    a_backend_that_is_killed_and_stays_away_fails_everybody_when_their_patience_ends,
    a_backend_that_is_killed_during_a_load_is_loaded_again_when_it_is_back
F-18: it accepts and never answers -> the model is unloaded and loaded again, the request sent once more, then given up; one that works is
    left alone
  in every phase: call silent, two calls silent
  worker/test_backend_faults: a_model_that_stays_silent_is_unloaded_loaded_again_and_asked_once_more,
    a_model_that_stays_silent_twice_fails_the_request_and_serves_the_next,
    a_whole_answer_gets_twice_the_time_that_its_length_can_take_and_its_healthy_model_stays_loaded
F-19: a model hangs while every health route answers -> seen by the missing progress, healed by a reload, the order kept
  in every phase: unload stuck
  emulator/test_gateway_heals: a_leaked_slot_costs_the_next_stream_one_first_byte_timeout_and_a_reload
  worker/test_backend_faults: a_slot_that_a_cut_stream_took_with_it_is_missed_within_10_s
  worker/test_loading: a_model_that_will_not_leave_is_told_again_before_anybody_loses_their_place,
    a_model_that_never_leaves_fails_those_who_need_another_with_a_time_to_come_back
F-20: 500, 502 or 503 before a byte -> a 503 is tried once more unseen; its own words reach the caller in the caller's dialect
  in every phase: call server_error, two calls server_error
  emulator/test_gateway_heals: an_ollama_that_is_busy_for_a_moment_is_asked_once_more_and_the_caller_sees_nothing_of_it
  worker/test_backend_faults: an_error_status_goes_to_the_caller_as_it_is_and_counts_as_failed_and_is_an_exception_in_process
F-21: 404: the model is gone -> a 404 in the caller's dialect, not tried again, the server not taken for down; what stays in memory keeps no
    other model out
  in every phase: load not_found
  api/test_inference: a_model_that_is_not_installed_is_404_in_the_words_of_ollama_and_reaches_no_queue
  worker/test_loading: a_load_that_fails_lies_or_does_not_end_is_no_success_and_all_who_wait_have_an_error_of_their_own,
    a_model_that_was_deleted_while_it_was_in_memory_keeps_no_other_from_coming
  emulator/test_gateway_heals: a_model_deleted_while_in_memory_gives_way_to_the_one_that_it_was_made_from
F-22: out of memory, the runner dies -> one more try, then an answer; no reservation is left and no load is repeated for ever
  in every phase: load fail, call runner_died, two calls runner_died
  worker/test_backend_faults: an_answer_that_the_model_died_over_or_without_a_body_is_asked_for_once_more_and_then_told
  emulator/test_gateway_heals: a_runner_that_dies_over_a_whole_answer_is_asked_once_more_and_the_caller_sees_nothing_of_it,
    the_request_after_a_runner_died_works
  scheduling/test_memory: a_load_that_fails_is_tried_once_more_after_two_seconds,
    a_load_that_fails_twice_gives_its_waiters_up_and_serves_the_others, a_load_that_failed_leaves_no_reservation
F-23: a load never ends -> given up at its time; other models are held up no longer
  in every phase: load never
  worker/test_loading: a_load_that_never_ends_holds_other_models_up_no_longer_than_its_timeout
  emulator/test_gateway_heals: a_load_that_never_ends_is_a_503_within_the_swap_timeout_and_the_other_model_is_served
F-24: a load is complete after we gave it up; a load that lies -> what is really there is used
  in every phase: load lie
  worker/test_loading: a_model_that_is_there_after_our_timeout_is_found_and_used,
    a_load_that_fails_lies_or_does_not_end_is_no_success_and_all_who_wait_have_an_error_of_their_own
F-25: 200, then an error line -> a failure in the stream, in the right form
  in every phase: call error_line, two calls error_line
  worker/test_backend_faults: an_error_line_at_the_end_of_a_stream_goes_to_the_caller_as_it_is
  wire/test_captures_through_gateway: a_runner_that_dies_in_mid_stream_is_told_in_the_stream_even_where_ollama_says_nothing
F-26: garbage, a page, bytes, nothing -> an error, never a completed answer
  faults/test_model_server: what_is_no_answer_is_an_error_of_the_model_server_and_never_a_completed_one
  backends/test_data_path: what_is_no_plain_answer_is_a_protocol_error
  worker/test_backend_faults: an_answer_that_the_model_died_over_or_without_a_body_is_asked_for_once_more_and_then_told
F-27: half a line, half a character, a byte at a time -> the same answer however it is cut; a cut one is an error
  dialects/test_framing: how_a_stream_is_cut_into_chunks_never_matters
  backends/test_data_path: chunks_come_as_the_server_made_them_and_in_their_order
  faults/test_model_server: what_is_no_answer_is_an_error_of_the_model_server_and_never_a_completed_one
F-28: it hangs up in mid-stream: FIN, reset, too short, no last chunk -> a truncated answer is never told as a complete one
  in every phase: call gone_mid_stream, two calls gone_mid_stream, call gone_before_head, two calls gone_before_head, call no_done, two
    calls no_done
  backends/test_data_path: a_body_that_breaks_its_framing_gives_what_came_and_then_an_error, a_reset_before_the_head_or_in_mid_body_is_gone
  emulator/test_gateway_heals: a_stream_without_its_end_is_ended_with_an_error_in_its_own_dialect
F-29: a line without end -> cut off
  backends/test_data_path: a_streamed_line_without_end_is_cut_off_and_a_long_one_of_a_whole_answer_is_not,
    a_body_larger_than_any_answer_is_cut_off
F-30: it is slow, or falls silent in the middle -> silence has a limit of its own; slowness does not end an answer
  in every phase: call slow, two calls slow, call stall, two calls stall
  worker/test_backend_faults: a_slow_stream_that_keeps_coming_is_left_alone,
    a_stream_that_falls_silent_in_the_middle_ends_within_twice_the_idle_timeout
F-31: fifty thousand tiny chunks -> all of them, in order
  backends/test_data_path: chunks_come_as_the_server_made_them_and_in_their_order
F-32: two ends, words after the end, absurd counts -> an end is an end; numbers that cannot be teach nothing and break nothing
  faults/test_model_server: an_end_that_says_odd_things_is_an_end_and_its_numbers_do_no_harm,
    what_is_no_answer_is_an_error_of_the_model_server_and_never_a_completed_one
F-33: it answers a cancelled call later -> nobody gets that answer
  backends/test_data_path: a_late_answer_to_a_cancelled_call_reaches_nobody, an_answer_that_was_not_read_to_the_end_ends_its_connection
F-34: it goes on with a prompt that nobody waits for -> the next caller waits or gets a reloaded model
  emulator/test_gateway_heals: a_prompt_that_is_read_for_nobody_delays_the_next_caller_until_the_model_is_reloaded
F-35: somebody else loads, drops or evicts a model -> what is there is looked at and counted
  gpu/test_drift: every_change_by_somebody_else_is_counted_and_shown_within_the_interval
  worker/test_backend_faults: a_model_that_somebody_else_loaded_is_used_as_it_is,
    a_restart_that_emptied_the_memory_is_noticed_within_the_check_interval
  scheduling/test_order: a_model_unloaded_behind_our_back_at_the_instant_of_an_arrival_is_loaded_again
F-36: slow or huge headers, a redirect -> refused; the target of a redirect is never called
  backends/test_data_path: an_endless_head_is_cut_off, a_body_that_breaks_its_framing_gives_what_came_and_then_an_error,
    a_redirect_is_refused_and_its_target_never_called
F-37: a compressed body although none was asked for -> refused and not inflated
  backends/test_data_path: what_is_no_plain_answer_is_a_protocol_error
F-38: unknown fields, an absurd date, another version -> passed on as they came
  faults/test_model_server: an_end_that_says_odd_things_is_an_end_and_its_numbers_do_no_harm
  backends/test_data_path: a_recorded_answer_comes_through_byte_for_byte_and_chunk_by_chunk

# Callers
F-39: a caller leaves the queue -> never sent to the model server; a job stays
  in every phase: all callers leave
  wire/test_leaving: who_leaves_the_queue_is_never_sent_to_the_model_server
  jobs/test_feeding: a_caller_who_leaves_during_the_commit_leaves_a_job_that_runs
F-40: a caller leaves while it is served, streaming or not, before or after the first byte -> the connection to the model server is closed
    and the slot is free
  wire/test_leaving: leaving_in_mid_stream_closes_the_connection_to_the_model_server,
    leaving_before_a_whole_answer_closes_the_connection_to_the_model_server,
    leaving_while_the_prompt_is_read_closes_the_connection_to_the_model_server,
    a_hundred_callers_who_leave_at_any_moment_leave_no_task_and_no_connection_behind
  cloud/test_faults: whoever_leaves_ends_the_call_at_once
F-41: half-close -> counts as leaving
  api/test_leaving: a_half_closed_connection_is_a_caller_who_has_left
F-42: a caller leaves in the tick of completion -> one end
  worker/test_races: completion_and_cancel_in_one_tick_have_one_winner
F-43: ten thousand wait and all leave at once -> gone at once, and those who run go on
  faults/test_instants: ten_thousand_who_wait_and_leave_at_once_are_gone_at_once
  wire/test_leaving: ten_thousand_preemptions_and_cancels_leave_nothing_behind
F-44: a reader is slow or stands still -> bounded memory, then dropped, and its slot goes to the next
  worker/test_slow_readers: a_reader_that_stands_still_is_dropped_after_the_deadline_and_its_place_goes_to_the_next
  wire/test_leaving: a_reader_that_stands_still_loses_its_slot_to_the_next_after_the_write_deadline
F-45: a body that is slow, short, long, endless, or waits to be asked for -> a deadline, a refusal or an answer; never a second request
  api/test_deadlines: a_body_that_stops_coming_ends_the_connection_and_reaches_no_queue, headers_that_do_not_come_in_time_end_the_connection
  api/test_server: a_broken_chunk_in_a_body_ends_the_connection
  faults/test_connections: who_waits_to_be_told_to_go_on_is_told,
    what_follows_a_body_longer_than_it_said_is_no_request_and_ends_the_connection
  api/test_inference: a_body_above_the_cap_is_refused_however_it_is_sent
F-46: one idempotency key of jobs or batches: again, at the same moment, with another body, of another caller, after the end, after its
    time, answered with a job of the same `job_key` -> one job; 409, 422, the kept result, another job, a new job, that job also after its
    end
  jobs/test_routes: the_same_idempotency_key_is_the_same_job_and_another_body_is_422, the_idempotency_key_of_another_caller_is_another_job,
    of_requests_with_one_key_at_the_same_moment_one_is_taken
  jobs/test_table: an_idempotency_key_stands_for_one_job_of_its_caller_for_a_day,
    an_idempotency_key_stands_for_an_ended_job_too_and_another_body_is_refused,
    a_key_that_was_answered_with_the_job_of_a_job_key_stands_for_it_after_its_end_too
  batches/test_keys: a_key_stands_for_one_batch_for_a_day_and_for_as_long_as_that_is_open,
    a_key_with_another_body_is_refused_and_starts_nothing, two_requests_with_one_key_at_the_same_moment_are_a_conflict_and_later_one_batch
  batches/test_routes: a_batch_is_taken_once_for_an_idempotency_key_whatever_has_become_of_it
F-47: a client repeats a request while the first one waits -> with a key one job; without one two requests
  faults/test_connections: the_same_request_sent_twice_without_a_key_is_two_requests
  jobs/test_feeding: two_requests_with_one_idempotency_key_at_the_same_moment_are_a_conflict_and_later_one_job
F-48: cancel in every state, twice, and of somebody else's -> one end; what is another's does not exist
  worker/test_cancelling: it_is_given_up_at_once_in_every_phase_and_again_is_no_error,
    a_request_id_cancels_all_of_its_owners_items_and_nobody_elses
  jobs/test_feeding: cancelling_races_with_every_moment_of_a_job_and_there_is_one_end
  api/test_control: requests_of_others_cannot_be_told_from_unknown_ones
F-49: a body of the largest size, ten thousand messages, absurd limits -> read, or refused in the caller's dialect with what is wrong
  api/test_inference: hostile_json_is_a_400_in_the_shape_of_the_dialect, a_large_body_is_parsed_while_others_are_served
  dialects/test_envelope: more_than_ten_thousand_messages_or_inputs_are_refused, the_output_limit_is_read_where_ollama_reads_it,
    a_body_that_does_not_fit_the_route_is_refused_with_ollamas_text
F-50: HTTP/1.0, a connection used again after an error, two requests in one packet, offers to upgrade -> answered in order, or refused and
    closed
  api/test_server: a_caller_of_http_1_0_gets_each_piece_of_a_stream_as_it_comes_unframed_and_the_end_of_the_connection,
    a_stream_that_never_ends_reaches_a_caller_of_http_1_0
  faults/test_connections: two_requests_in_one_packet_are_answered_in_their_order, a_connection_goes_on_after_a_refusal,
    an_offer_of_http_2_is_not_taken_up_and_the_request_is_answered, what_is_in_one_packet_with_many_offers_of_http_2_is_all_answered,
    a_body_that_follows_an_offer_of_http_2_is_read
F-51: a thousand connections that come and go -> no descriptor is left
  faults/test_connections: a_thousand_connections_that_come_and_go_leave_nothing_behind

# The store
F-52: another program holds the lock -> what must be durable is refused, the rest is kept and written later
  storage/test_faults: another_programs_lock_refuses_what_must_be_durable_and_keeps_the_rest,
    a_connection_that_is_well_is_kept_through_a_lock
  storage/test_opening: a_database_locked_by_another_program_is_refused
F-53: the disk is full, wherever it fills up -> nothing is acknowledged that is not written; the reserve lets old rows go
  storage/test_faults: a_full_disk_refuses_without_acknowledging_wherever_it_fills_up,
    on_a_full_disk_the_reserve_is_given_up_once_so_that_pruning_can_run, a_real_write_that_fails_halfway_loses_no_acknowledged_row
  jobs/test_feeding: while_the_disk_fails_nothing_is_accepted_and_a_result_waits_until_it_can_be_kept
  worker/test_store: requests_go_on_while_the_disk_fails_and_are_logged_when_it_is_well
F-54: the file becomes read-only, moves away or loses its directory -> as with a full disk; never in secret and never in memory only
  storage/test_faults: a_file_that_was_moved_away_is_not_written_to_in_secret, a_file_that_was_replaced_is_left_alone
  storage/test_opening: a_database_that_can_only_be_read_is_refused, a_directory_that_cannot_be_made_is_refused
  worker/test_store: a_file_that_vanishes_stops_nobody_and_nothing_is_lost_once_it_is_back
F-55: an I/O error at the first, second, ... operation -> no acknowledged row is lost or doubled, whichever it is
  storage/test_faults: a_disk_that_fails_at_any_operation_loses_no_acknowledged_row_and_doubles_none
  storage/test_opening: a_disk_that_fails_at_any_operation_of_a_start_leaves_nothing_half_made
  reliability/test_io_errors: wherever_the_disk_fails_a_job_is_accepted_and_there_or_refused_and_welcome_again,
    wherever_the_disk_fails_from_the_first_start_on_the_file_stays_sound
  dst/test_worlds: no_world_breaks_a_rule
F-56: a sync fails -> the connection is not trusted any more: opened anew, the file checked
  storage/test_faults: after_a_failed_sync_the_connection_is_opened_anew_and_the_database_checked
F-57: a damaged page, a cut or lost write-ahead log, an empty file, another version, no database at all -> refused with what to do, and left
    alone
  storage/test_opening: a_damaged_page_is_refused_with_instructions, a_write_ahead_log_that_was_cut_off_loses_only_its_end,
    a_write_ahead_log_without_its_database_is_not_thrown_away, a_file_cut_off_to_nothing_is_not_taken_for_a_new_one,
    a_newer_schema_is_refused_and_left_alone, a_file_that_is_no_database_is_refused_and_left_alone
F-58: each commit takes long -> the loop goes on; everything that waits shares the next sync
  storage/test_writer: the_loop_goes_on_while_the_disk_is_slow, everything_that_waits_during_one_sync_shares_the_next
F-59: a task is cancelled in the middle of a statement -> the statement finishes or rolls back as one
  storage/test_writer: cancelling_who_waits_leaves_the_statement_to_finish, a_failing_function_fails_alone_and_leaves_nothing_behind
F-60: the owner copies the live file or looks in with a shell -> a backup is whole, nobody is disturbed
  storage/test_store: a_backup_of_a_live_store_is_whole_and_private, an_owner_who_looks_in_with_a_shell_disturbs_nobody
F-61: very many old rows -> they go in small steps between the work
  storage/test_retention: many_old_rows_go_in_many_small_steps
  storage/test_writer: upkeep_goes_on_step_by_step_between_the_work_until_it_is_done

# Time
F-62: the wall clock jumps: an hour, ten years, 1970 -> waits, durations and limits do not notice, announced tasks do; a day's money is not
    given out twice; no message is put off
  faults/test_instants: a_wall_clock_that_jumps_changes_nothing_for_anybody_who_waits_or_runs
  cloud/test_purse: a_clock_that_jumps_never_opens_a_day_twice
  worker/test_store: a_clock_that_was_set_back_lengthens_no_window
  test_clock: ids_never_repeat
  observability/test_logs: an_instant_that_no_calendar_shows_costs_one_line_and_not_the_log
  worker/test_announcements: a_task_is_due_by_the_calendar_though_the_clock_was_set_or_the_machine_slept
  jobs/test_webhooks: a_wall_clock_that_is_set_back_puts_off_no_message
F-63: the skipped and the repeated hour, in several zones -> every minute is classified once, by the wall
  config/test_active_hours: every_minute_around_a_clock_change_is_classified_by_the_wall_clock,
    hours_that_begin_inside_the_skipped_hour_begin_at_the_jump, a_boundary_inside_the_repeated_hour_is_crossed_twice,
    a_task_in_the_repeated_hour_comes_once
  cloud/test_purse: a_day_with_a_clock_change_has_one_budget_and_no_more
F-64: hours over midnight, of a whole day, of no length -> the start belongs to them, the end does not
  config/test_active_hours: the_second_before_a_boundary_belongs_to_the_old_mode_and_the_boundary_to_the_new,
    a_window_whose_end_is_its_start_is_the_whole_day, text_that_is_no_window_is_refused
F-65: active hours begin or end while something runs, is stopped or swapped -> at the beginning what keeps the house waiting is stopped;
    from the end on nobody is
  faults/test_instants: from_the_instant_at_which_active_hours_end_nobody_is_stopped,
    a_swap_on_which_active_hours_end_is_finished_and_serves_both
  worker/test_preempting: internal_work_that_waits_when_active_hours_begin_stops_the_call_at_that_instant

# Alerts
F-66: 429, with any advice or none -> the advice is kept, one post at a time, a bounded queue, losses counted
  alerts/test_delivery: a_429_that_says_nothing_usable_waits_the_default,
    the_longest_advice_holds_but_no_answer_silences_a_target_for_more_than_an_hour,
    an_answer_that_asks_for_time_gets_it_and_then_the_same_message, ten_thousand_alerts_while_the_target_stalls_are_bounded_and_counted
F-67: the webhook is gone -> one post, then none until the configuration is read again
  alerts/test_delivery: a_refused_message_is_given_up_and_a_webhook_that_is_gone_gets_no_more_until_the_configuration_is_read_again
F-68: errors, silence, resets -> a bounded number of tries, further and further apart; requests notice nothing
  alerts/test_delivery: a_target_that_keeps_failing_gets_a_bounded_number_of_tries_further_and_further_apart
  alerts/test_poster: a_target_that_says_nothing_times_out, a_target_that_hangs_up_is_broken
  alerts/test_house: requests_go_on_while_every_target_stalls_under_ten_thousand_alerts
F-69: the name is unknown, or the name server hangs -> looked up beside the threads of requests
  alerts/test_poster: a_name_that_nobody_knows_is_a_failure_of_dns, names_are_looked_up_beside_the_threads_that_requests_use,
    a_name_server_that_hangs_costs_one_thread_however_often_it_is_asked
F-70: ten thousand events -> a handful of posts that say how many
  alerts/test_delivery: ten_thousand_alerts_while_the_target_stalls_are_bounded_and_counted,
    a_stream_of_alerts_is_never_more_than_twenty_posts_a_minute
F-71: alerting fails; the end comes with alerts waiting -> no alert about alerts; two seconds at most
  alerts/test_rules: there_is_no_alert_about_alerts
  alerts/test_delivery: what_waits_at_the_end_is_sent_in_one_message_and_a_post_that_is_out_is_not_sent_twice,
    a_target_that_stalls_holds_up_the_end_for_two_seconds_at_most

# The configuration
F-72: a file that is wrong, empty, binary, huge, hostile -> all problems are named, the old settings stay, the next good file counts
  config/test_document: an_alias_bomb_costs_nothing, a_damaged_file_is_either_read_or_refused_with_a_config_error,
    a_duplicate_key_is_told_with_the_line_of_the_first
  config/test_loading: all_problems_come_at_once_in_the_order_of_the_file, a_file_that_is_no_text_file_is_refused,
    the_largest_file_is_read_and_one_byte_more_is_refused
  config/test_reloading: a_bad_content_changes_nothing_and_the_good_one_after_it_counts, what_editors_of_other_systems_write_counts,
    a_file_of_the_largest_size_does_not_hold_the_loop_up
F-73: deleted, unreadable, a directory, behind links, written in steps, touched, written a thousand times -> half a file is never in force,
    and the last whole one is
  config/test_reload_watching: every_way_of_saving_is_noticed_again_and_again,
    a_swapped_symlink_in_the_style_of_kubernetes_is_noticed_again_and_again,
    a_file_that_is_moved_away_is_told_once_and_one_that_is_back_counts, our_own_reading_and_a_touch_lead_to_no_reload
  config/test_reload_plan: a_file_that_is_written_in_steps_is_tried_when_it_is_complete,
    a_thousand_writes_in_five_seconds_are_few_tries_and_the_last_one_counts
  config/test_reloading: something_else_in_place_of_the_file_changes_nothing
F-74: valid and dangerous: no keys on an open address, another port, limits of zero -> refused, or named as waiting for a restart
  config/test_keys_and_environment: listening_beyond_this_machine_needs_keys
  config/test_reloading: keys_that_wait_for_a_restart_are_named_until_they_are_back
  test_rate_limiter: a_limit_of_zero_refuses_always_and_advises_one_hour
F-75: a reload during a swap, a preemption, a full queue, a start, a stop, another reload -> in force at one point; what runs does not
    notice
  in every phase: reload
  faults/test_instants: a_reload_at_any_instant_changes_nothing_that_it_does_not_say
  config/test_reload_live: many_reloads_good_and_bad_under_load_drop_nothing_and_count_exactly, while_stopping_nothing_is_put_in_force
  config/test_reloading: a_change_while_the_last_one_is_parsed_is_not_lost
F-76: the queue's limit falls below its length; a key is taken out; a model no longer fits -> what was accepted ends well, new requests are
    refused
  worker/test_reloading: a_lower_depth_drops_nobody_and_admits_nobody_until_there_is_room
  faults/test_connections: a_key_that_is_taken_out_ends_nothing_that_was_accepted_and_begins_nothing_more
  scheduling/test_memory: what_waits_and_could_never_be_loaded_after_a_reload_is_told_so

# Claude
F-77: 429 with advice -> a short pause is waited for, a long one is the caller's
  backends/test_claude: every_refusal_has_a_name_of_ours_and_is_asked_once, the_pause_that_claude_asks_for_is_kept
  cloud/test_faults: a_long_pause_is_the_callers_to_wait_and_nobody_sleeps_through_it
F-78: 429 because the account's money is spent -> not asked again until a reload, and told
  backends/test_claude: every_refusal_has_a_name_of_ours_and_is_asked_once
  cloud/test_faults: a_refused_account_is_not_asked_again_until_a_reload
F-79: 529, 500, 503 -> a bounded number of tries, then an error of the caller's dialect
  backends/test_claude: every_refusal_has_a_name_of_ours_and_is_asked_once
  cloud/test_faults: a_passing_refusal_is_tried_again_unnoticed, attempts_are_bounded
F-80: 401, 403 -> not asked again; the key shows nowhere
  backends/test_claude: every_refusal_has_a_name_of_ours_and_is_asked_once
  cloud/test_faults: a_refused_account_is_not_asked_again_until_a_reload
  cloud/test_clients_at_claude: the_key_goes_to_its_address_only_and_shows_nowhere
F-81: 400, 413 -> the caller's to change
  backends/test_claude: every_refusal_has_a_name_of_ours_and_is_asked_once
  cloud/test_faults: what_the_caller_has_to_change_reaches_the_caller_and_is_not_tried_again
F-82: errors, pings only, no end, unknown or disordered events after the head -> an error in the stream; signs of life do not count for
    ever; what is unknown says nothing
  backends/test_claude: an_error_inside_a_stream_is_told_by_its_type, a_cut_connection_is_an_error_and_not_an_end
  cloud/test_faults: a_stall_ends_even_where_signs_of_life_go_on, a_stream_that_breaks_off_is_an_error_in_every_client_and_is_paid_for
  dialects/claude/test_answering: no_event_whatever_breaks_an_answer, a_stream_without_its_end_is_no_answer
F-83: a certificate that nobody vouches for, no TLS at all -> not a byte of the request is sent
  faults/test_tls: a_certificate_that_nobody_vouches_for_is_not_talked_to, a_port_without_tls_hears_no_key_in_the_clear

# The card and the machine
F-84: no driver, a driver that does not start, hangs, lies, loses the card -> unknown instead of wrong, bounded by a thread and a time, told
    once
  gpu/test_gpu_watch: without_a_driver_there_is_one_quiet_word_and_hardly_a_question,
    a_card_that_is_lost_and_comes_back_is_told_of_once_each_and_counts_again, a_reading_that_never_ends_delays_nobody
  gpu/test_gpu_thread: a_driver_that_hangs_costs_one_thread_and_the_timeout, the_loop_goes_on_while_a_driver_hangs
  gpu/test_nvml: a_driver_that_does_not_start_says_why, memory_that_cannot_be_true_is_unknown
F-85: another program takes GPU memory -> what others hold is not there for models
  gpu/test_gpu_watch: memory_that_a_game_holds_makes_a_model_go_that_could_have_stayed,
    where_there_is_no_room_for_both_one_model_is_loaded_at_a_time
  scheduling/test_memory: memory_that_others_hold_is_not_there_for_models_1
F-86: a model computes on the CPU in secret -> told, shown, and given the time that it takes
  gpu/test_drift: a_model_wholly_on_the_cpu_is_worth_a_word_only_where_there_is_a_gpu
  emulator/test_gateway_heals: a_model_that_is_split_with_the_cpu_is_reported_as_such
F-87: no descriptors are left -> it serves again when there are some; the file was open before
  faults/test_processes: a_process_out_of_descriptors_serves_again_when_there_are_some
  security/test_connections: a_connection_too_many_is_503_in_the_dialect_and_counted_and_a_free_place_is_taken
F-88: memory is short -> everything that grows has a bound: bodies, buffers, queues, histories
  worker/test_submitting: each_lane_has_its_own_depth, one_more_than_may_wait_is_refused_with_a_time_to_come_back_and_changes_nothing
  worker/test_slow_readers: a_reader_that_stands_still_is_dropped_after_the_deadline_and_its_place_goes_to_the_next
  api/test_inference: a_body_above_the_cap_is_refused_however_it_is_sent
  left out: There is no shedding by bytes in flight: depth times the largest body is the bound, and the owner sets both.
F-89: the loop stands still -> told once with its length; nothing that came meanwhile is given up
  in every phase: loop stands still
  alerts/test_monitors: a_hold_up_of_the_loop_is_told_once_with_its_length
  faults/test_stalls: a_stream_that_went_on_while_the_loop_stood_still_is_not_idle,
    a_whole_answer_that_came_while_the_loop_stood_still_is_an_answer,
    a_reader_that_was_about_to_read_when_the_loop_stood_still_is_not_dropped
F-90: the threads are all busy -> names, the disk and the card have threads of their own
  alerts/test_poster: names_are_looked_up_beside_the_threads_that_requests_use
  storage/test_writer: the_loop_goes_on_while_the_disk_is_slow
  gpu/test_gpu_thread: a_card_is_read_in_one_thread_that_is_not_the_loops
F-91: the log's disk is full, its reader gone or asleep -> lines are dropped and counted; nobody waits
  observability/test_logs: a_blocked_output_delays_nobody_and_its_losses_are_told_later, a_closed_output_drops_and_counts,
    a_process_whose_stdout_nobody_reads_still_exits_cleanly
F-92: others take the processor -> slow and right (in `make reliability`)
  faults/test_processes: a_process_that_shares_one_core_with_four_others_is_slow_and_right
F-93: no home, no temporary directory, the C locale, an open umask, an unknown zone -> it starts, and its file is private
  faults/test_processes: in_odd_surroundings_a_hundred_orders_to_read_the_file_cost_no_request_and_a_second_signal_ends_a_long_grace
  storage/test_opening: a_new_database_is_private_to_its_user

# Races
F-94: preemption and completion -> one winner; a result that is there is delivered
  worker/test_races: completion_and_preemption_in_one_tick_have_one_winner
  scheduling/test_yielding: a_completion_that_races_its_preemption_wins_if_it_is_what_happened
F-95: an answer that ends twice, or after its cancel -> the first end counts
  worker/test_slow_readers: the_first_ending_of_a_reply_counts
  worker/test_races: completion_and_cancel_in_one_tick_have_one_winner
  worker/test_cancelling: cancelling_the_future_of_an_in_process_call_cancels_the_item
F-96: two internal arrivals during one external run -> one stop
  in every phase: the house needs the card
  worker/test_preempting: two_internal_arrivals_in_one_tick_stop_one_call_once
F-97: an internal arrival while external work is put back or about to start -> nothing is forgotten and nothing starts twice
  in every phase: the owner makes room
  worker/test_races: internal_work_that_comes_while_external_work_is_put_back_starts_once_and_first
  worker/test_preempting: an_external_call_that_was_told_to_start_and_to_stop_in_one_tick_is_not_lost
F-98: a caller leaves between its turn and its start -> never sent
  worker/test_cancelling: what_is_cancelled_in_the_tick_of_its_arrival_is_never_sent
  worker/test_races: an_item_that_leaves_as_its_place_comes_free_makes_way_for_the_next
F-99: a request as the home model's timer fires -> the request wins
  worker/test_home: an_arrival_at_any_instant_of_a_restore_is_served,
    an_arrival_at_the_very_instant_of_a_restore_is_served_and_the_house_still_comes_home_once
  scheduling/test_memory: a_request_that_arrives_as_the_home_timer_fires_wins
  dst/test_races: a_request_at_the_instant_of_the_home_models_return_is_served_and_the_house_comes_home
F-100: a model goes as a request for it comes -> served, after a load where one is needed
  scheduling/test_order: a_request_that_races_the_unload_of_its_model_is_served_after_a_reload,
    a_model_unloaded_behind_our_back_at_the_instant_of_an_arrival_is_loaded_again
  dst/test_races: a_model_that_goes_behind_the_gateways_back_as_it_is_asked_for_is_asked_all_the_same
F-101: the reason for a swap leaves while it is under way -> no third swap
  faults/test_instants: a_swap_whose_reason_leaves_ends_without_a_third_one
  scheduling/test_runs: two_models_in_turn_make_one_swap_per_item_at_most
F-102: a reload between a request's limit and its place in the queue -> old rules or new ones for one request, never both
  config/test_reload_live: an_edit_under_load_holds_on_the_next_request_and_the_counts_of_the_hour_survive
  api/test_app: a_reloaded_configuration_is_in_force_with_the_next_request
F-103: a stop between a job's arrival and its commit -> promised and on the disk, or refused and not
  faults/test_accepting: a_job_that_is_being_accepted_during_a_stop_is_durable_or_refused
F-104: a waiter that was woken is cancelled -> no decision is lost: whoever reports a fact decides, or leaves it to who runs
  worker/test_mailbox: a_fact_is_decided_upon_within_the_report_once_somebody_runs,
    what_was_reported_before_waits_for_somebody_to_run_and_so_does_what_comes_after
F-105: a decision or a background task raises -> reported, started again, nothing lost; the watchdog sees a queue that only fails
  worker/test_supervision: a_decision_that_raises_is_reported_and_the_next_one_works,
    a_task_that_breaks_is_reported_and_started_again_until_the_stop
  orders/test_service_manager: a_queue_task_that_has_ended_feeds_nothing
F-106: the garbage collector runs at the worst moment -> every task is held by somebody
  worker/test_supervision: no_task_is_lost_to_the_garbage_collector

# Resumed streams
F-107: the second run says something else, anywhere -> an error worth a retry, and not one byte of it
  dialects/test_replay_divergence: a_run_that_differs_anywhere_gives_its_whole_answer_or_not_one_byte,
    the_first_different_letter_ends_the_comparison_wherever_it_is,
    a_call_with_other_arguments_is_another_answer_although_a_key_in_them_is_called_id
  worker/test_replaying: whatever_the_second_run_does_the_caller_reads_one_valid_stream_or_an_error_behind_right_text,
    no_wrong_byte_reaches_anybody_over_many_interruptions
F-108: the second run ends early, errs or is cut -> another answer, or a fault of the model server
  dialects/test_replay_divergence: a_run_that_ends_before_it_has_said_everything_again_is_refused
  worker/test_replaying: whatever_the_second_run_does_the_caller_reads_one_valid_stream_or_an_error_behind_right_text
F-109: the second run is the same, cut differently -> it goes on without a gap or a repetition
  dialects/test_replay: any_answer_interrupted_anywhere_and_often_is_read_as_one_valid_stream, any_unicode_text_survives_any_interruption,
    every_single_byte_is_a_place_to_go_on_from
  worker/test_replaying: an_interrupted_stream_goes_on_where_it_stopped_as_one_valid_stream_and_nothing_is_sent_before
F-110: an answer is cut inside a letter or a stop sequence, at its limit, before its first or after its last word -> it goes on without a
    gap or a repetition
  dialects/test_continuing: every_byte_of_a_stream_is_a_place_to_go_on_from, any_text_goes_on_from_any_place_also_with_stop_sequences,
    a_stop_sequence_across_the_cut_ends_the_answer, a_budget_that_is_used_up_ends_the_answer_without_another_word
  worker/test_continuing: no_character_is_lost_doubled_or_out_of_order_over_many_interruptions,
    before_the_first_word_there_is_nothing_to_continue_and_any_answer_will_do, a_rest_without_a_word_is_an_end
F-111: the prompt cannot be rendered, slowly, or not as before; the context has no room for the text so far -> the stream is replayed, or
    finishes first
  worker/test_continuing: a_server_that_renders_nothing_is_asked_once_and_its_streams_are_replayed_or_finish,
    a_server_that_is_slow_to_render_holds_up_nobody_and_is_asked_again, a_template_that_was_changed_meanwhile_is_not_continued_with,
    a_text_that_the_context_has_no_room_for_is_replayed
F-112: the model server fails or is interrupted again while it says the rest, or says something else -> once more before the rest begins,
    after that an error behind right text
  worker/test_continuing: a_server_that_dies_before_the_rest_begins_is_asked_once_more,
    a_rest_that_breaks_off_ends_the_stream_with_an_error_after_right_text, it_may_be_interrupted_again_and_again
  dialects/test_continuing: something_else_than_was_asked_from_is_refused_before_anything_comes_out
F-113: a caller leaves while its stream is continued -> the GPU is free at once
  worker/test_continuing: a_caller_who_leaves_during_the_rest_or_while_the_prompt_is_rendered_frees_the_model
"""
