"""Faults in the rooms beside the theory that a test of `make test` must see, chosen like the mutants of `fixed`."""

from __future__ import annotations

from tests.mutants.fixed import Fixed


def fault(name: str, where: str, original: str, mutated: str, test: str) -> Fixed:
    path, function = where.split()
    return Fixed(name, f"{path}.py", function, original, mutated, (test,))


PLANTED = (
    fault(
        "a certificate one draw early",
        "pddpo_ray/theory/certificates/certificate _first_at_least",
        "return int(reached[0]) + 1 if",
        "return int(reached[0]) if",
        "test_ten_cases_computed_with_60_digits",
    ),
    fault(
        "a failed score is a number",
        "pddpo_ray/limits/sources Source._number",
        "if not math.isfinite(number):",
        "if math.isinf(number):",
        "test_an_endpoint_that_fails_on_some_rows_gives_no_number_there",
    ),
    fault(
        "a judge's two orders are not turned back",
        "pddpo_ray/scoring/judges/judge _judged_pair",
        "(swapped[1], swapped[0])",
        "(swapped[0], swapped[1])",
        "test_a_busy_endpoint_is_asked_again_when_it_says",
    ),
    fault(
        "a label counted twice",
        "pddpo_ray/annotation/queue/answers Answers._answer",
        'if lease_row.state == "answered":',
        'if lease_row.state == "cancelled":',
        "test_the_same_key_again_is_the_same_answer",
    ),
    fault(
        "who signed out is let in",
        "pddpo_ray/annotation/people/accounts People.by_cookie",
        "login.c.revoked_ms.is_(None),",
        "",
        "test_a_new_token_ends_the_old_one_and_its_sessions",
    ),
    fault(
        "chances of being shown to people left out",
        "pddpo_ray/limits/sources asked_first",
        "len(drawn) / max(len(pool), 1)",
        "1.0",
        "test_an_interval_counts_what_people_saw_of_what_a_machine_stands_for",
    ),
    fault(
        "labels a round later than the bound",
        "pddpo_ray/parts/due_labels DueLabels._choose_due_rounds",
        "number > now - self._rounds_late",
        "number > now - self._rounds_late - 1",
        "test_a_worlds_labels_come_exactly_so_late_and_all_by_the_end",
    ),
    fault(
        "a resumed run computes a finished phase again",
        "pddpo_ray/journal/journal Journal.once",
        "if stored is not None:",
        "if stored is not None and False:",
        "test_the_lock_of_a_killed_driver_is_taken_over_and_its_unfinished_phase_done_again",
    ),
    fault(
        "a policy without a certificate is released",
        "pddpo_ray/certificates/release settle",
        'if line.state == "certified":',
        'if line.state != "undecided":',
        "test_a_policy_that_was_shown_to_break_its_limit_is_not_released",
    ),
    fault(
        "altered weights are read",
        "pddpo_ray/storage/artifacts _verify_hash",
        "if actual != sha256:",
        "if not actual:",
        "test_a_changed_file_is_refused",
    ),
    fault(
        "a delivery without its canaries",
        "pddpo_ray/rollout/delivery_check check_canaries",
        "if not difference <= tolerance:",
        "if difference > 1e9:",
        "test_an_engine_that_computes_with_other_weights_is_refused",
    ),
    fault(
        "a key is taken without its scope",
        "deploy/serving/app_state EntranceState.demand",
        "if not key.scope.covers(scope):",
        "if not scope:",
        "test_metrics_are_for_keys_of_inspection",
    ),
    fault(
        "a stream is cut without an error",
        "deploy/serving/exchange Exchange.events",
        "yield _error_event(failure.status, failure.detail)",
        "yield failure.detail[:0]",
        "test_a_stream_that_breaks_ends_with_an_error_and_not_in_silence",
    ),
)
