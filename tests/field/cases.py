"""Which tests hold which case: reports from users of other schedulers, by their number."""

from __future__ import annotations

from typing import Final

CASES: Final[dict[str, tuple[str, ...]]] = {
    # Expressions, zones, clocks that are changed, dates.
    "CRN-01": (
        "tests/field/test_calendar.py::"
        "test_a_time_in_the_gap_fires_once_after_it_and_the_next_day_at_its_own_time",
        "tests/domain/test_cron_zones.py::test_a_time_in_the_spring_gap_fires_once_right_after_it",
        "tests/loops/test_scheduler.py::"
        "test_where_clocks_are_changed_the_ledger_says_what_the_schedule_asks_for",
    ),
    "CRN-02": (
        "tests/field/test_calendar.py::test_a_day_without_a_midnight_has_all_its_other_hours",
        "tests/domain/test_cron_zones.py::test_a_clock_that_jumps_at_midnight_loses_no_day",
    ),
    "CRN-03": (
        "tests/field/test_calendar.py::"
        "test_a_time_in_the_gap_fires_once_after_it_and_the_next_day_at_its_own_time",
        "tests/domain/test_cron_zones.py::"
        "test_after_a_shifted_run_the_schedule_returns_to_its_own_time",
    ),
    "CRN-04": (
        "tests/field/test_calendar.py::"
        "test_a_fixed_time_fires_once_although_a_scheduler_dies_between_the_two_passes",
        "tests/domain/test_cron_zones.py::"
        "test_a_time_in_the_repeated_hour_fires_in_the_first_pass_only",
    ),
    "CRN-05": (
        "tests/field/test_calendar.py::"
        "test_every_hour_and_every_quarter_are_real_ones_through_both_passes",
        "tests/domain/test_cron_zones.py::"
        "test_every_hour_means_every_real_hour_through_both_passes",
        "tests/domain/test_cron_zones.py::"
        "test_quarter_hours_follow_real_time_without_hole_or_double",
        "tests/domain/test_schedule.py::"
        "test_an_interval_follows_real_time_through_a_change_of_the_clock",
    ),
    "CRN-06": (
        "tests/field/test_calendar.py::"
        "test_ticked_each_second_of_the_second_pass_a_job_fires_no_more_than_it_should",
        "tests/domain/test_cron_zones.py::"
        "test_inside_the_second_pass_the_next_fire_is_the_next_day",
        "tests/domain/test_cron_zones.py::"
        "test_the_next_fire_is_always_later_than_the_moment_asked_about",
        "tests/domain/test_schedule_misfires.py::"
        "test_a_night_with_a_repeated_hour_runs_a_daily_job_once_even_if_ticked_each_second",
    ),
    "CRN-07": (
        "tests/field/test_calendar.py::"
        "test_dates_that_never_come_are_refused_wherever_they_are_given_and_others_go_on",
        "tests/field/test_calendar.py::"
        "test_a_31st_of_one_of_its_months_is_accepted_and_the_first_fire",
        "tests/domain/test_cron.py::test_what_never_fires_is_refused_in_bounded_time",
    ),
    "CRN-08": (
        "tests/domain/test_cron.py::test_29_february_comes_in_leap_years_only",
    ),
    "CRN-09": (
        "tests/domain/test_cron.py::test_the_work_for_each_rare_date_is_bounded",
        "tests/domain/test_cron.py::test_rare_dates_are_found_without_walking_minutes",
    ),
    "CRN-10": (
        "tests/domain/test_cron.py::test_a_weekend_is_saturday_and_sunday_however_it_is_written",
        "tests/domain/test_cron.py::test_a_range_may_end_on_sunday",
        "tests/domain/test_cron.py::test_what_cannot_be_carried_out_is_refused_by_name",
    ),
    "CRN-11": (
        "tests/loops/test_scheduler.py::"
        "test_jobs_that_cannot_be_computed_are_suspended_and_stop_nobody",
        "tests/loops/test_scheduler.py::"
        "test_a_row_that_the_database_refuses_is_found_among_its_batch",
    ),
    "CRN-12": (
        "tests/field/test_calendar.py::test_what_is_no_zone_is_refused_alike_wherever_it_is_given",
        "tests/field/test_calendar.py::"
        "test_real_names_and_aliases_are_taken_in_a_post_and_a_patch_and_fire_when_they_should",
        "tests/field/test_calendar.py::"
        "test_a_zone_that_is_null_is_none_and_in_a_patch_that_of_a_job_that_names_none",
        "tests/domain/test_cron_zones.py::"
        "test_any_other_zone_is_refused_when_checked_and_when_computed",
        "tests/domain/test_cron_zones.py::test_every_zone_of_the_database_is_usable",
    ),
    "CRN-13": (
        "tests/field/test_calendar.py::test_the_zone_of_the_process_does_not_matter",
        "tests/domain/test_cron_zones.py::test_the_zone_of_the_server_does_not_matter",
    ),
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
    "DUP-05": (
        "tests/loops/test_scheduler.py::"
        "test_after_any_time_down_each_nominal_time_is_in_the_ledger_once_and_the_latest_ran",
        "tests/loops/test_scheduler.py::"
        "test_where_misfires_are_skipped_none_of_an_outage_runs_and_each_is_on_record",
        "tests/loops/test_scheduler.py::"
        "test_what_is_later_than_its_grace_is_missed_with_that_reason",
        "tests/domain/test_schedule_misfires.py::"
        "test_after_an_outage_each_job_runs_once_late_and_then_as_usual",
    ),
    "DUP-06": (
        "tests/field/test_duplicates.py::"
        "test_a_frozen_scheduler_that_wakes_up_gives_way_or_catches_up_with_one_run_of_each_job",
        "tests/field/test_duplicates.py::"
        "test_what_a_scheduler_had_in_mind_before_it_slept_is_not_written",
        "tests/crash/test_scheduler.py::"
        "test_a_scheduler_stopped_while_it_fires_is_replaced_and_cannot_write_afterwards",
        "tests/loops/test_loop.py::test_a_loop_that_does_not_tick_makes_its_process_unready",
        "tests/api/test_admin_port.py::test_a_process_is_ready_when_every_check_is_well",
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
    # The API.
    "API-04": (
        "tests/api/test_lists.py::test_a_thousand_jobs_of_one_transaction_are_listed_once_each",
        "tests/api/test_lists.py::"
        "test_jobs_that_come_and_go_meanwhile_neither_hide_nor_repeat_others",
        "tests/api/test_lists.py::test_attempts_and_the_ledger_are_listed_once_each",
        "tests/api/test_lists.py::test_dead_letters_are_listed_once_each_and_by_filter",
        "tests/api/test_lists.py::test_a_damaged_cursor_is_refused",
        "tests/api/test_lists.py::test_a_cursor_holds_for_its_list_its_filter_and_its_tenant_only",
    ),
    "API-05": (
        "tests/field/test_calendar.py::"
        "test_a_far_date_is_never_early_and_a_past_one_is_due_at_once",
        "tests/api/test_validation_jobs.py::test_a_time_is_an_instant_whatever_its_offset",
        "tests/api/test_validation_jobs.py::test_a_time_that_is_none_or_out_of_range_is_refused",
        "tests/api/test_validation_jobs.py::test_a_past_time_and_a_far_one_are_taken",
        "tests/api/test_validation_jobs.py::test_a_delay_counts_from_the_database_s_time",
        "tests/api/test_validation_jobs.py::test_a_delay_that_is_none_or_too_long_is_refused",
        "tests/api/test_validation_jobs.py::test_an_interval_out_of_range_is_refused",
    ),
    "API-07": (
        "tests/api/test_patching.py::"
        "test_a_zone_and_an_expression_that_are_not_given_stay_and_what_fires_next_follows",
        "tests/api/test_patching.py::test_what_is_given_replaces_what_was_there_and_the_rest_stays",
        "tests/api/test_patching.py::test_of_changes_at_the_same_time_for_one_version_one_is_made",
        "tests/api/test_patching.py::"
        "test_what_was_due_is_fired_as_it_was_and_then_only_what_it_is_now",
    ),
}  # fmt: skip
