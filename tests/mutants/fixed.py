"""The mutants that must turn red at every `make full`: where, what was written, what stands there instead, which tests.

A test is named by its function. All tests that a mutant names must pass without it, and one of them must fail with it.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.mutants.mutation import ROOT, functions_of


@dataclass(frozen=True)
class Fixed:
    """One formula written wrongly. `original` occurs once in the function."""

    name: str
    path: str
    function: str
    original: str
    mutated: str
    tests: tuple[str, ...]

    @property
    def source(self) -> str:
        """The whole mutated file. Raises ValueError where the formula is no longer written as it was."""
        file = ROOT / self.path
        text = file.read_text(encoding="utf-8") if file.is_file() else ""
        node = functions_of(text).get(self.function)
        lines = text.splitlines(keepends=True)
        first, last = (0, 0) if node is None else (node.lineno - 1, node.end_lineno or 0)
        before, body, after = ("".join(part) for part in (lines[:first], lines[first:last], lines[last:]))
        if body.count(self.original) != 1:
            raise ValueError(
                f"mutant {self.name!r}: {self.original!r} occurs {body.count(self.original)} times in {self.function} "
                f"of {self.path}, not once; write the formula as it is now into tests/mutants/fixed.py"
            )
        return before + body.replace(self.original, self.mutated) + after


def mutant(name: str, where: str, original: str, mutated: str, *tests: str) -> Fixed:
    path, function = where.split()
    room = "lab/pddpo_lab" if path.startswith(("methods/", "worlds/tabular/", "margins", "mle")) else "pddpo_ray"
    return Fixed(name, f"{room}/{path}.py", function, original, mutated, tests)


FIXED = (
    # --- margins and the two stages ---------------------------------------------------------------------------------
    mutant(
        "the margin's sign",
        "methods/loss_bonus bonus_margin",
        "return rejected - chosen",
        "return chosen - rejected",
        "test_corrected_bonus_loss_has_the_closed_form_as_its_minimiser",
    ),
    mutant(
        "the sign of the margin where a run computes it",
        "methods/loss_bonus LossBonuses.loss_bonus",
        "bonus_margin(self._bonus_of(stage, chosen), self._bonus_of(stage, rejected))",
        "bonus_margin(self._bonus_of(stage, rejected), self._bonus_of(stage, chosen))",
        "test_the_margin_of_a_run_is_the_bonus_of_the_rejected_answer_less_that_of_the_chosen_one",
    ),
    mutant(
        "the cost stage gets the reward's bonus",
        "methods/loss_bonus LossBonuses._bonus_of",
        'return reward if stage == "reward" else cost',
        "return reward",
        "test_the_margin_of_a_run_is_the_bonus_of_the_rejected_answer_less_that_of_the_chosen_one",
    ),
    mutant(
        "the sign of the bonus that a table's scores are left with",
        "margins score_margin",
        "return margin + (chosen - rejected)",
        "return margin - (chosen - rejected)",
        "test_a_bonus_margin_leaves_nothing_in_the_logit_of_two_scores_and_the_printed_one_does",
    ),
    mutant(
        "beta times the multiplier",
        "theory/multipliers/cost_stage cost_temperature",
        "return beta / multiplier if multiplier > 0 else math.inf",
        "return beta * multiplier if multiplier > 0 else math.inf",
        "test_the_cost_stage_of_a_run_has_temperature_beta_over_the_multiplier",
    ),
    mutant(
        "the Lagrangian objective at the reward stage's temperature",
        "algorithms/stages lagrangian_objective",
        "cost_temperature(beta, multiplier), multiplier)",
        "beta * multiplier, multiplier)",
        "test_the_cost_stage_of_a_run_has_temperature_beta_over_the_multiplier",
    ),
    mutant(
        "the loss divides by its temperature",
        "theory/losses/objectives preference_loss",
        "logits = temperature * difference if margins",
        "logits = difference / temperature if margins",
        "test_cost_stage_loss_by_hand",
    ),
    mutant(
        "the loss subtracts the margin",
        "theory/losses/objectives preference_loss",
        "else temperature * difference + margins",
        "else temperature * difference - margins",
        "test_corrected_bonus_loss_has_the_closed_form_as_its_minimiser",
    ),
    mutant(
        "the loss prefers the rejected answer",
        "theory/losses/objectives preference_loss",
        "losses = softplus(-logits)",
        "losses = softplus(logits)",
        "test_gradient_in_each_log_probability_is_minus_and_plus_temperature_times_sigmoid",
    ),
    mutant(
        "row weights left out",
        "theory/losses/objectives preference_loss",
        "losses = losses * weights",
        "losses = losses",
        "test_a_weighted_row_counts_as_often_as_its_copies",
    ),
    mutant(
        "chosen and rejected swapped in the cost stage of a text",
        "parts/preferences cost_rows",
        "return _rows(item, item.label(comparison), number, first_is_chosen=Verdict.SECOND)",
        "return _rows(item, item.label(comparison), number, first_is_chosen=Verdict.FIRST)",
        "test_the_cheaper_answer_is_chosen_and_the_better_one_too",
    ),
    mutant(
        "chosen and rejected swapped in the cost stage of a table",
        "worlds/tabular/parts wins_of",
        "(rejected, chosen) if costs else (chosen, rejected)",
        "(chosen, rejected) if costs else (chosen, rejected)",
        "test_wins_of_rows_put_the_costlier_answer_first_and_count_weights",
    ),
    mutant(
        "a table's cost stage goes towards cost",
        "worlds/tabular/parts TabularTrainer.execute",
        'sign = 1.0 if objective.stage == "reward" and not objective.values else -1.0\n        logits',
        "sign = 1.0\n        logits",
        "test_cost_stage_pushes_down_what_pairs_call_costlier",
    ),
    mutant(
        "a table's policy forgets the temperature",
        "worlds/tabular/parts TabularTrainer.execute",
        "(sign * scores + bonus) / objective.temperature",
        "(sign * scores + bonus) * objective.temperature",
        "test_margins_make_a_fit_optimistic_also_about_answers_in_no_pair",
    ),
    mutant(
        "a table's margins with the wrong sign",
        "worlds/tabular/parts offsets_of",
        "= -score_margin(",
        "= score_margin(",
        "test_a_table_fits_the_margins_that_it_is_given",
    ),
    mutant(
        "the support term's sign",
        "theory/losses/objectives support_loss",
        "loss = -log_mass.sum() / count",
        "loss = log_mass.sum() / count",
        "test_support_loss_counts_response_tokens_only",
    ),
    mutant(
        "the support term counts padding",
        "theory/losses/objectives support_loss",
        "count = mask.sum().clamp_min(1.0) if",
        "count = torch.ones_like(mask).sum() if",
        "test_support_loss_counts_response_tokens_only",
    ),
    mutant(
        "the loss raises the baseline's answers",
        "theory/losses/objectives baseline_optimism_loss",
        "return alpha * baseline_log_probs,",
        "return -alpha * baseline_log_probs,",
        "test_baseline_optimism_pushes_mass_away_from_the_baselines_answers",
    ),
    mutant(
        "the cost stage's loss is not scaled",
        "theory/multipliers/cost_stage cost_stage_scales",
        "return multiplier, min(1.0, multiplier / reference_multiplier)",
        "return 1.0, min(1.0, multiplier / reference_multiplier)",
        "test_cost_stage_scales_bound_loss_and_learning_rate",
    ),
    mutant(
        "every cost stage is trained",
        "theory/multipliers/cost_stage skips_cost_stage",
        "return multiplier <= below",
        "return False",
        "test_cost_stage_is_skipped_at_and_near_zero",
    ),
    mutant(
        "the carried cost part is rescaled the wrong way round",
        "parts/fitting start_of",
        "min(now / before, CARRY_MAX)",
        "min(before / now, CARRY_MAX)",
        "test_a_cost_fit_carries_last_rounds_cost_part_rescaled_to_the_new_multiplier",
    ),
    mutant(
        "a fit divides by the ranks' own pairs",
        "training/fit _accumulate",
        "pairs = len(batch) * mean_weight",
        "pairs = len(batch)",
        "test_a_weighted_row_counts_as_often_as_its_copies",
    ),
    # --- maximum likelihood -----------------------------------------------------------------------------------------
    mutant(
        "the table's ridge left out",
        "mle gradient",
        "pull.sum(axis=-1) + ridge * scores",
        "pull.sum(axis=-1)",
        "test_gradient_agrees_with_finite_differences",
    ),
    mutant(
        "the ridge of scores from features grows them",
        "mle _Logistic.loss_and_slope",
        "slope = self.ridge * theta - self.rows.T",
        "slope = -self.ridge * theta - self.rows.T",
        "test_a_ridge_pulls_scores_from_features_to_where_its_gradient_vanishes",
    ),
    mutant(
        "scores may leave the box",
        "mle _search",
        "trial = np.clip(here + step[:, None] * direction, -bound, bound)",
        "trial = here + step[:, None] * direction",
        "test_scores_stop_at_the_box",
    ),
    mutant(
        "the winner loses",
        "mle win_counts",
        "(prompts, winners, losers)), weights",
        "(prompts, losers, winners)), weights",
        "test_wins_of_rows_put_the_costlier_answer_first_and_count_weights",
    ),
    mutant(
        "optimism rewards the baseline's answers",
        "mle _value_and_slope",
        "weight = alpha * wins.sum()",
        "weight = -alpha * wins.sum()",
        "test_more_weight_takes_more_mass_from_the_baselines_answers_and_scores_stay_in_their_box",
    ),
    # --- the dual variable ------------------------------------------------------------------------------------------
    mutant(
        "the sign of the dual step",
        "theory/multipliers/dual _gradient_step",
        "limit.price + eta * limit.excess(estimate)",
        "limit.price - eta * limit.excess(estimate)",
        "test_fixed_step_by_hand",
    ),
    mutant(
        "the projection left out",
        "theory/multipliers/dual ascend",
        "multiplier = min(max(price / old.scale, old.lower), old.upper)",
        "multiplier = price / old.scale",
        "test_projection_at_both_ends_and_its_messages",
    ),
    mutant(
        "the threshold's sign",
        "theory/multipliers/dual LimitState.excess",
        "return (estimate.value - self.aim(estimate)) / self.scale",
        "return (estimate.value + self.aim(estimate)) / self.scale",
        "test_moving_limit_and_cost_together_gives_the_same_step_up_to_the_bound",
    ),
    mutant(
        "lambda of the next round",
        "parts/dual_step LocalDual.multipliers",
        "if number + step.estimate.rounds_late < round_",
        "if number + step.estimate.rounds_late <= round_",
        "test_each_multiplier_answers_its_own_estimate_from_the_next_round_on",
    ),
    mutant(
        "every constraint answers every estimate",
        "theory/multipliers/dual DualState.with_limit",
        "new if limit.name == new.name else limit for limit",
        "new for limit",
        "test_each_constraint_of_a_vector_has_its_own_multiplier",
    ),
    mutant(
        "the step does not know the horizon",
        "theory/multipliers/dual ProjectedFixed.next",
        "* math.sqrt(self.rounds))",
        "* self.rounds)",
        "test_fixed_step_by_hand",
    ),
    mutant(
        "anytime steps do not shrink",
        "theory/multipliers/dual ProjectedAnytime.next",
        "(limit.steps + 1) * (1 +",
        "1 * (1 +",
        "test_anytime_steps_shrink_with_the_square_root_of_the_round",
    ),
    mutant(
        "Newton multiplies by the curvature",
        "theory/multipliers/dual DampedNewton.next",
        "self.damping * self.beta / curvature_variance(",
        "self.damping * self.beta * curvature_variance(",
        "test_newton_takes_the_variance_within_prompts_where_it_is_known",
    ),
    mutant(
        "the explicit dual's slope has the wrong sign",
        "methods/explicit_dual dual_slope",
        "(rewards + multiplier * gains) / beta",
        "(rewards - multiplier * gains) / beta",
        "test_mocans_price_minimises_the_explicit_dual_of_its_own_models",
    ),
    # --- estimates, intervals, certificates -------------------------------------------------------------------------
    mutant(
        "the clip left out",
        "theory/estimates/cost_estimate clipped_logit",
        "return np.clip(logit(np.clip(shares, expit(-cost_max), expit(cost_max))), -cost_max, cost_max)",
        "return logit(shares)",
        "test_one_label_that_agrees_everywhere_gives_plus_or_minus_the_bound",
    ),
    mutant(
        "an estimate's standard error forgets the root",
        "theory/estimates/cost_estimate mean_with_error",
        "numbers.std(ddof=1) / math.sqrt(numbers.size)",
        "numbers.std(ddof=1) / numbers.size",
        "test_two_responses_are_enough_for_an_estimate",
    ),
    mutant(
        "label noise stays in the variance within prompts",
        "theory/estimates/cost_estimate within_covariance",
        "np.minimum(noise, MOST_NOISE * np.diag(covariance))",
        "0.0 * noise",
        "test_variance_within_prompts_by_hand",
    ),
    mutant(
        "an interval of one side",
        "theory/intervals student_half_width",
        "stdtrit(count - 1, 0.5 + level / 2)",
        "stdtrit(count - 1, level)",
        "test_groups_of_values_are_averaged_and_none_is_left_out",
    ),
    mutant(
        "the tail of a rate's interval",
        "theory/intervals clopper_pearson",
        "tail = (1.0 - level) / 2.0",
        "tail = 1.0 - level",
        "test_intervals_of_a_rate_and_of_a_mean_are_scipys",
    ),
    mutant(
        "a certificate's bets",
        "theory/certificates/certificate bets_below",
        "return (1.0 - rho) / (1.0 - rho * _limit(limit))",
        "return (1.0 - rho) / (1.0 + rho * _limit(limit))",
        "test_ten_cases_computed_with_60_digits",
    ),
    mutant(
        "a certificate's wealth starts at the best bet",
        "theory/certificates/certificate _log_mean",
        "logsumexp(logs, axis=0) - math.log(len(logs))",
        "logsumexp(logs, axis=0)",
        "test_ten_cases_computed_with_60_digits",
    ),
    mutant(
        "candidates do not share delta",
        "theory/certificates/certificate candidate_level",
        "return 6.0 * delta / (math.pi * number) ** 2",
        "return delta / number**2",
        "test_levels_of_all_candidates_sum_to_delta",
    ),
    mutant(
        "a policy above its limit is put to the test",
        "theory/output shortfall",
        "return None",
        "return 0.0",
        "test_the_shortfall_is_a_share_of_the_way_from_what_a_test_reaches_to_the_limit",
    ),
    mutant(
        "the mixture weighted unevenly",
        "theory/output output_weights",
        "return (1.0 / rounds,) * rounds",
        "return tuple(2.0 * (k + 1) / (rounds * (rounds + 1)) for k in range(rounds))",
        "test_a_mixture_has_the_mean_cost_and_at_least_the_mean_value",
    ),
    mutant(
        "the logit's bias left out",
        "theory/estimates/estimate_interval interval",
        "np.interp(low, means, lowest)",
        "low",
        "test_the_interval_of_a_logit_holds_every_mean_cost_that_the_labels_allow",
    ),
    # --- exploration, seeds, what a fit sees ------------------------------------------------------------------------
    mutant(
        "the bonus' sign",
        "exploration/explorer OptimisticExplorer._behaviour_weights",
        "optimism = (self._reward_weight * reward + multiplier",
        "optimism = -(self._reward_weight * reward + multiplier",
        "test_answers_in_no_pair_are_chosen_more_often_than_covered_ones",
    ),
    mutant(
        "the design matrix is not updated",
        "exploration/design Design.add",
        "matrix += self.weight * np.outer(row, row)",
        "matrix += 0.0 * np.outer(row, row)",
        "test_grouping_of_pairs_changes_nothing_and_shards_agree_up_to_rounding",
        "test_pairs_of_a_round_enter_both_the_choice_and_the_bonus_in_the_loss",
    ),
    mutant(
        "the bonus in the loss never learns of a pair",
        "methods/loss_bonus LossBonuses.update",
        "self._bonus.update(pairs)",
        "self._bonus.update([])",
        "test_pairs_of_a_round_enter_both_the_choice_and_the_bonus_in_the_loss",
    ),
    mutant(
        "picks of a batch raise the uncertainty",
        "exploration/design sherman_morrison",
        "return inverse_matrix - np.outer",
        "return inverse_matrix + np.outer",
        "test_sherman_morrison_equals_refactoring",
    ),
    mutant(
        "the prior of a score difference is inverted",
        "exploration/design empty_design",
        "np.eye(dimension) / s0**2",
        "np.eye(dimension) * s0**2",
        "test_pairs_of_a_round_enter_both_the_choice_and_the_bonus_in_the_loss",
    ),
    mutant(
        "the effective sample size is not kept",
        "exploration/resampling resampling_weights",
        "log_weights = base + tau * optimism",
        "log_weights = base + optimism",
        "test_effective_sample_size_is_kept_and_weights_sum_to_one",
    ),
    mutant(
        "candidates are weighted by the proposal",
        "exploration/resampling exact_base",
        "np.logaddexp(log_policy, log_proposal)",
        "log_proposal",
        "test_exact_weights_by_hand",
    ),
    mutant(
        "features are not centred on the baseline",
        "exploration/explorer OptimisticExplorer._centred_features",
        "return self._features(responses) - np.stack(",
        "return self._features(responses) + 0.0 * np.stack(",
        "test_pairs_of_a_round_enter_both_the_choice_and_the_bonus_in_the_loss",
    ),
    mutant(
        "all draws share a seed",
        "theory/seeds seed_of",
        "for part in parts)",
        "for part in parts[:1])",
        "test_seeds_follow_from_names_alone_and_differ_between_them",
    ),
    mutant(
        "all rounds share a fit's seed",
        "parts/fitting TrainerController._command",
        'seed=seed_of(self._seed, round_, objective.stage, link, "fit")',
        'seed=seed_of(self._seed, objective.stage, link, "fit")',
        "test_fits_of_different_rounds_and_stages_draw_differently",
    ),
    mutant(
        "replayed rows stand for themselves alone",
        "theory/refit limit_rows",
        "factor = len(older) / max(budget, 1)",
        "factor = 1.0",
        "test_a_row_budget_keeps_the_newest_round_and_the_weight_of_the_others",
    ),
    # --- methods ----------------------------------------------------------------------------------------------------
    mutant(
        "SafeDPO's margin favours unsafe answers",
        "methods/safe_dpo transformed",
        "margins.append(-margin if unsafe[rejected.id] else 0.0)",
        "margins.append(margin if unsafe[rejected.id] else 0.0)",
        "test_safety_bits_keep_swap_and_drop_pairs_and_mark_the_margin",
    ),
    mutant(
        "CAID's step has the wrong sign",
        "methods/caid stepped",
        "multiplier + rate * (estimate.value - threshold)",
        "multiplier - rate * (estimate.value - threshold)",
        "test_caid_begins_at_the_one_shot_price_and_steps_on_its_own_answers",
    ),
)
