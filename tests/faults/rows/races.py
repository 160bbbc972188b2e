"""Two things at the same instant."""

from __future__ import annotations

from tests.faults.table import Part, in_every_phase, row, shown

RACES, TRAPS, SUPERVISION = "worker/test_races", "scheduling/test_order", "worker/test_supervision"
FORCED = "dst/test_races"

PART = Part(
    name="Races",
    rows=(
        row(
            "F-94",
            "preemption and completion",
            "one winner; a result that is there is delivered",
            shown(RACES, "completion_and_preemption_in_one_tick_have_one_winner"),
            shown("scheduling/test_yielding", "a_completion_that_races_its_preemption_wins_if_it_is_what_happened"),
        ),
        row(
            "F-95",
            "an answer that ends twice, or after its cancel",
            "the first end counts",
            shown("worker/test_slow_readers", "the_first_ending_of_a_reply_counts"),
            shown(RACES, "completion_and_cancel_in_one_tick_have_one_winner"),
            shown("worker/test_cancelling", "cancelling_the_future_of_an_in_process_call_cancels_the_item"),
        ),
        row(
            "F-96",
            "two internal arrivals during one external run",
            "one stop",
            in_every_phase("the house needs the card"),
            shown("worker/test_preempting", "two_internal_arrivals_in_one_tick_stop_one_call_once"),
        ),
        row(
            "F-97",
            "an internal arrival while external work is put back or about to start",
            "nothing is forgotten and nothing starts twice",
            in_every_phase("the owner makes room"),
            shown(RACES, "internal_work_that_comes_while_external_work_is_put_back_starts_once_and_first"),
            shown("worker/test_preempting", "an_external_call_that_was_told_to_start_and_to_stop_in_one_tick_is_not_lost"),
        ),
        row(
            "F-98",
            "a caller leaves between its turn and its start",
            "never sent",
            shown("worker/test_cancelling", "what_is_cancelled_in_the_tick_of_its_arrival_is_never_sent"),
            shown(RACES, "an_item_that_leaves_as_its_place_comes_free_makes_way_for_the_next"),
        ),
        row(
            "F-99",
            "a request as the home model's timer fires",
            "the request wins",
            shown(
                "worker/test_home",
                "an_arrival_at_any_instant_of_a_restore_is_served",
                "an_arrival_at_the_very_instant_of_a_restore_is_served_and_the_house_still_comes_home_once",
            ),
            shown("scheduling/test_memory", "a_request_that_arrives_as_the_home_timer_fires_wins"),
            shown(FORCED, "a_request_at_the_instant_of_the_home_models_return_is_served_and_the_house_comes_home"),
        ),
        row(
            "F-100",
            "a model goes as a request for it comes",
            "served, after a load where one is needed",
            shown(
                TRAPS,
                "a_request_that_races_the_unload_of_its_model_is_served_after_a_reload",
                "a_model_unloaded_behind_our_back_at_the_instant_of_an_arrival_is_loaded_again",
            ),
            shown(FORCED, "a_model_that_goes_behind_the_gateways_back_as_it_is_asked_for_is_asked_all_the_same"),
        ),
        row(
            "F-101",
            "the reason for a swap leaves while it is under way",
            "no third swap",
            shown("faults/test_instants", "a_swap_whose_reason_leaves_ends_without_a_third_one"),
            shown("scheduling/test_runs", "two_models_in_turn_make_one_swap_per_item_at_most"),
        ),
        row(
            "F-102",
            "a reload between a request's limit and its place in the queue",
            "old rules or new ones for one request, never both",
            shown("config/test_reload_live", "an_edit_under_load_holds_on_the_next_request_and_the_counts_of_the_hour_survive"),
            shown("api/test_app", "a_reloaded_configuration_is_in_force_with_the_next_request"),
        ),
        row(
            "F-103",
            "a stop between a job's arrival and its commit",
            "promised and on the disk, or refused and not",
            shown("faults/test_accepting", "a_job_that_is_being_accepted_during_a_stop_is_durable_or_refused"),
        ),
        row(
            "F-104",
            "a waiter that was woken is cancelled",
            "no decision is lost: whoever reports a fact decides, or leaves it to who runs",
            shown(
                "worker/test_mailbox",
                "a_fact_is_decided_upon_within_the_report_once_somebody_runs",
                "what_was_reported_before_waits_for_somebody_to_run_and_so_does_what_comes_after",
            ),
        ),
        row(
            "F-105",
            "a decision or a background task raises",
            "reported, started again, nothing lost; the watchdog sees a queue that only fails",
            shown(
                SUPERVISION, "a_decision_that_raises_is_reported_and_the_next_one_works", "a_task_that_breaks_is_reported_and_started_again"
            ),
            shown("orders/test_service_manager", "a_queue_task_that_has_ended_feeds_nothing"),
        ),
        row(
            "F-106",
            "the garbage collector runs at the worst moment",
            "every task is held by somebody",
            shown(SUPERVISION, "no_task_is_lost_to_the_garbage_collector"),
        ),
    ),
)
