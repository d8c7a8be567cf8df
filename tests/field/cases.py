"""Which tests hold which case: reports from users of other schedulers, by their number."""

from __future__ import annotations

from typing import Final

CASES: Final[dict[str, tuple[str, ...]]] = {
    # Duplicates, missed occurrences, failover, clocks, leadership.
    "DUP-01": (
        "tests/field/test_duplicates.py::test_leadership_that_goes_to_and_fro_doubles_nothing",
        "tests/loops/test_scheduler.py::test_leadership_that_goes_to_and_fro_fires_each_minute_once",
        "tests/races/test_ticks.py::test_an_owner_with_an_old_epoch_writes_nothing",
        "tests/races/test_ticks.py::"
        "test_an_owner_that_lost_and_regained_its_shard_does_not_write_under_its_old_term",
        "tests/crash/test_scheduler.py::"
        "test_a_scheduler_stopped_while_it_fires_is_replaced_and_cannot_write_afterwards",
    ),
    "DUP-02": (
        "tests/field/test_duplicates.py::test_no_occurrence_falls_between_two_leaders",
        "tests/crash/test_scheduler.py::"
        "test_no_boundary_is_lost_or_doubled_however_often_schedulers_are_killed_at_one",
    ),
    "DUP-03": (
        "tests/field/test_duplicates.py::"
        "test_schedulers_whose_clocks_are_wrong_fire_when_postgres_says_so",
    ),
    "DUP-04": (
        "tests/field/test_duplicates.py::"
        "test_a_scheduler_whose_clock_is_set_back_repeats_nothing_and_goes_on",
        "tests/field/test_duplicates.py::"
        "test_after_a_failover_to_an_earlier_clock_nothing_is_repeated",
    ),
    "DUP-07": (
        "tests/field/test_duplicates.py::"
        "test_a_scheduler_killed_at_any_moment_leaves_no_mark_without_run_and_no_run_without_mark",
        "tests/crash/test_scheduler.py::test_a_scheduler_killed_while_it_commits_has_fired",
    ),
    "DUP-08": (
        "tests/field/test_duplicates.py::"
        "test_an_interval_longer_than_any_process_lives_fires_on_its_grid",
        "tests/field/test_duplicates.py::"
        "test_after_a_restart_each_of_many_intervals_keeps_its_phase",
    ),
    # Leases, heartbeats, cancelled runs, shutdown.
    "LSE-01": (
        "tests/races/test_leases.py::test_a_result_and_the_reaper_do_not_both_end_a_lease",
        "tests/races/test_leases.py::"
        "test_a_reaper_that_acts_on_what_it_read_long_ago_changes_nothing",
    ),
    "LSE-02": (
        "tests/crash/test_worker.py::test_a_worker_that_slept_through_its_lease_cannot_settle",
    ),
    "LSE-03": (
        "tests/crash/test_leases.py::"
        "test_a_worker_started_again_under_its_name_does_not_vouch_for_the_leases_it_had",
    ),
    "LSE-04 (c)": (
        "tests/crash/test_leases.py::"
        "test_a_worker_that_is_cut_off_hangs_up_before_another_begins_and_works_on_afterwards",
        "tests/loops/test_worker.py::"
        "test_an_attempt_without_a_confirmed_heartbeat_is_stopped_before_its_lease_ends",
        "tests/loops/test_worker.py::test_not_even_a_database_that_keeps_silent_holds_that_up",
    ),
    "LSE-05": (
        "tests/crash/test_leases.py::"
        "test_five_restarts_within_one_run_use_no_attempt_and_wait_for_no_lease",
        "tests/crash/test_worker.py::"
        "test_a_worker_told_to_stop_finishes_what_it_can_and_hands_back_the_rest_uncounted",
        "tests/loops/test_worker.py::test_the_tenth_interruption_is_a_dead_letter",
    ),
    "LSE-07": (
        "tests/field/test_leases.py::test_what_a_cancel_answers_is_what_becomes_of_the_run",
        "tests/field/test_leases.py::test_what_has_ended_long_ago_is_not_cancelled_and_says_so",
        "tests/races/test_leases.py::test_a_cancel_and_a_result_tell_the_same_story",
        "tests/races/test_claims.py::"
        "test_a_cancelled_run_is_not_claimed_and_a_claimed_one_not_cancelled",
    ),
    # Delivery.
    "RTY-01": (
        "tests/executors/test_field_cases.py::"
        "test_the_next_attempt_is_never_earlier_than_the_backoff_nor_two_hours_later",
    ),
    "RTY-02": (
        "tests/domain/test_retry.py::test_high_failure_numbers_wait_the_cap",
        "tests/domain/test_lifecycle.py::test_two_thousand_attempts_are_two_thousand",
    ),
    "RTY-03": (
        "tests/executors/test_field_cases.py::"
        "test_a_login_page_behind_a_redirect_is_no_success_and_sees_no_header_of_ours",
        "tests/executors/test_http_outcomes.py::"
        "test_a_redirect_is_a_named_failure_and_is_not_followed",
    ),
    "RTY-04": (
        "tests/executors/test_http_faults.py::"
        "test_one_deadline_covers_the_whole_exchange_however_bytes_drip",
        "tests/executors/test_field_cases.py::"
        "test_receivers_that_hang_keep_no_slot_and_hold_up_nobody_else",
    ),
    "RTY-05": (
        "tests/executors/test_http_excerpts.py::"
        "test_a_success_with_megabytes_is_a_success_cut_and_marked",
        "tests/executors/test_http_faults.py::"
        "test_a_success_with_an_endless_body_is_a_success_and_takes_little_memory",
    ),
    "RTY-06": (
        "tests/executors/test_field_cases.py::"
        "test_every_attempt_sends_the_same_bytes_and_each_verifies",
    ),
    "RTY-07": (
        "tests/executors/test_field_cases.py::"
        "test_retries_hours_apart_and_a_rotation_between_them_verify_within_five_minutes",
    ),
    "RTY-08": (
        "tests/executors/test_http_outcomes.py::test_every_status_ends_in_its_class",
        "tests/executors/test_field_cases.py::"
        "test_no_task_dies_of_any_failure_and_the_executor_works_on",
        "tests/executors/test_http_tls.py::"
        "test_a_certificate_that_does_not_verify_is_permanent_named_and_sends_nothing",
    ),
    # Postgres.
    "PGD-01": (
        "tests/field/test_postgres.py::"
        "test_while_a_snapshot_is_held_open_claims_retries_and_ticks_cost_what_they_did",
        "tests/field/test_postgres.py::"
        "test_a_transaction_that_keeps_dead_rows_is_seen_with_its_age",
    ),
    "PGD-02": (
        "tests/field/test_postgres.py::"
        "test_behind_a_pooler_in_transaction_mode_everything_works_and_survives_kills",
        "tests/field/test_postgres.py::"
        "test_without_a_way_round_the_pooler_work_is_found_by_polling_and_each_process_says_so",
    ),
    "PGD-03": (
        "tests/field/test_postgres.py::test_a_listener_that_is_ended_listens_again",
        "tests/field/test_postgres.py::"
        "test_after_a_long_time_without_postgres_everything_goes_on_by_itself",
        "tests/field/test_postgres.py::"
        "test_when_packets_were_dropped_silently_everything_goes_on_by_itself",
        "tests/crash/test_postgres.py::"
        "test_everything_recovers_by_itself_when_postgres_crashes_under_load",
    ),
    "PGD-04": (
        "tests/field/test_tables.py::"
        "test_archiving_claiming_reaping_retrying_cancelling_and_replaying_get_along",
        "tests/races/test_leases.py::"
        "test_a_cancel_and_a_batch_of_results_do_not_wait_for_each_other_in_a_circle",
    ),
    "PGD-05": (
        "tests/field/test_tables.py::test_what_is_due_in_the_future_costs_a_tick_nothing",
        "tests/field/test_tables.py::test_a_herd_at_one_second_fires_whole_and_oldest_first",
        "tests/store/test_explain.py::"
        "test_what_is_on_the_way_of_every_run_uses_its_index_and_its_partition",
    ),
    "PGD-06": (
        "tests/crash/test_leases.py::test_heartbeats_go_on_while_the_pool_has_no_connection_left",
        "tests/crash/test_leases.py::"
        "test_a_worker_that_cannot_have_what_its_settings_ask_for_says_so_and_does_not_start",
    ),
    "PGD-07": (
        "tests/field/test_tables.py::"
        "test_what_is_pruned_takes_no_protection_against_duplicates_along",
        "tests/field/test_tables.py::test_an_occurrence_that_was_pruned_is_not_made_again",
        "tests/store/test_retention.py::"
        "test_jobs_go_when_they_ended_long_enough_ago_and_nothing_needs_them",
    ),
    # Fairness.
    "FAR-01": (
        "tests/field/test_fairness.py::"
        "test_endless_urgent_work_does_not_stop_the_least_urgent",
        "tests/domain/test_fair.py::"
        "test_nobody_within_its_share_starves_under_a_permanent_flood",
    ),
    "FAR-02": (
        "tests/field/test_fairness.py::"
        "test_a_flood_does_not_delay_the_single_runs_of_others",
        "tests/domain/test_fair.py::"
        "test_the_single_runs_of_others_do_not_wait_behind_a_flood_however_large",
    ),
    "FAR-04": (
        "tests/field/test_fairness.py::"
        "test_the_wait_of_the_least_urgent_does_not_depend_on_how_much_waits_before_it",
        "tests/field/test_fairness.py::test_fifty_tenants_get_their_shares_by_weight",
        "tests/domain/test_fair.py::"
        "test_fifty_tenants_of_weight_one_and_ten_get_their_shares",
    ),
    "FAR-03": (
        "tests/field/test_caps.py::"
        "test_a_key_is_never_carried_out_more_often_at_a_time_than_it_may_be",
        "tests/field/test_caps.py::"
        "test_a_tenant_never_has_more_runs_at_a_time_than_it_may_have",
        "tests/field/test_caps.py::"
        "test_of_fifty_triggers_of_a_job_that_does_not_overlap_itself_one_is_carried_out",
        "tests/crash/test_caps.py::"
        "test_no_cap_is_exceeded_and_no_slot_lost_however_often_processes_are_killed",
    ),
}  # fmt: skip
