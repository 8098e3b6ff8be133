"""`python -m scripts.requirements_page`: writes docs/requirements.md, which says of each requirement which tests show it.

A requirement has a name (M1, H3), by which issues and commit messages refer to it. A test is named as `FILE::NAME`, without the
`tests/` before and the `.py` and `test_` within; tests/scripts/test_pages.py fails where one is not there.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "requirements.md"

INTRODUCTION = """# What must polytile do, and which test shows it?

Each requirement has a name. Beside it stand the tests that fail where it does not hold, or, where it is about speed or memory,
the benchmark whose results are committed. What is not met says so.

`python -m scripts.requirements_page` writes this page, and a test fails if a test that it names is gone."""


@dataclass(frozen=True)
class Requirement:
    """A behaviour that polytile must have: the tests and benchmarks that show it, and what of it is `missing`."""

    name: str
    says: str
    tests: tuple[str, ...] = ()
    benchmarks: tuple[str, ...] = ()
    missing: str = ""


def _row(name: str, says: str, *shown: str, missing: str = "") -> Requirement:
    """`shown`: tests as `FILE::NAME`, benchmarks as modules."""
    tests, benchmarks = ([s for s in shown if ("::" in s) is one] for one in (True, False))
    return Requirement(name, says, tuple(tests), tuple(benchmarks), missing)


GROUPS: dict[str, tuple[Requirement, ...]] = {
    "Several kernels behind one call": (
        _row("M1", "Equal tuples of kernels share one definition; another tuple is another definition.",
             "behaviour/test_choice::call_sites_with_the_same_sub_kernels_share_one_definition",
             "behaviour/test_choice::another_tuple_of_sub_kernels_is_another_multikernel"),
        _row("M2", "All kernels of a call take one list of arguments, repeated buffers and scratch memory included.",
             "dispatch/test_multikernel::the_same_buffer_may_be_passed_twice",
             "dispatch/test_multikernel::candidates_with_different_scratch_buffers_share_one_argument_list",
             "dispatch/test_spec::scratch_buffers_are_merged_by_name_each_as_large_as_the_largest_request",
             "behaviour/test_multikernel::a_buffer_that_is_both_read_and_written"),
        _row("M3", "A buffer goes only if no kernel needs it, and in-place updates mean the same in all kernels.",
             "passes/test_cleanup::a_result_may_be_written_over_the_temporary_it_is_computed_from",
             "passes/test_fusion::an_update_of_an_input_stays_in_the_fused_loop",
             "behaviour/test_multikernel::row_sums_times_a_matmul_are_computed_in_the_products_memory",
             "gpu/test_sub_kernels::each_is_right_where_it_is_forced"),
        _row("M4", "A kernel may have a grid and arguments of its own.",
             "runtime/cuda/test_launch::grids_are_computed_for_each_call",
             "runtime/cuda/test_launch::descriptors_are_made_for_each_call_and_passed_by_value",
             "codegen/test_triton_gemm::every_schedule_and_layout"),
        _row("M5", "An option checks every input once for NaN and infinity, and names argument and kernel.",
             "behaviour/test_inputs::a_bad_value_in_an_input_names_argument_and_kernel",
             "behaviour/test_inputs::each_argument_is_looked_at_once"),
        _row("M6", "An unknown shape is timed on the caller's arguments without changing them; then its winner runs at once.",
             "behaviour/test_choice::tuning_on_the_callers_arguments_changes_none_of_them",
             "behaviour/test_choice::a_shape_is_tuned_once_and_then_goes_straight_to_the_winner"),
        _row("M7", "Any kernel can be forced: by option, by environment, by replaced timings.",
             "behaviour/test_choice::forced_by_option",
             "behaviour/test_choice::forced_by_environment_variable",
             "behaviour/test_multikernel::each_sub_kernel_forced_through_replaced_timings"),
        _row("M8", "Choices outlive the process, under keys of all that decides; one switch turns that off.",
             "behaviour/test_choice::choices_outlive_the_compiled_function",
             "behaviour/test_choice::persistence_off_leaves_the_cache_directory_as_it_was",
             "dispatch/test_selector::what_can_change_the_winner_is_part_of_the_key",
             "runtime/test_cache::a_failed_write_leaves_the_old_file_and_no_temporary"),
        _row("M9", "Kernels compile side by side, and a call waits only for those that it needs.",
             "behaviour/test_choice::sub_kernels_compile_side_by_side",
             "behaviour/test_choice::a_forced_kernel_waits_for_no_other"),
        _row("M10", "Programs built ahead call the recorded choice, without Python and without a lookup.",
             "wrapper/test_cpp::a_whole_function_runs_in_c",
             "behaviour/test_stored_programs::a_second_process_needs_no_compiler",
             "packages/test_packages::a_cpp_program_without_python_gives_eagers_results",
             "gpu/test_packages::a_cpp_program_without_python_gives_the_same"),
        _row("M11", "Each decision is a row of a table and a line of the log.",
             "behaviour/test_choice::every_decision_is_a_row_of_the_metrics_table",
             "behaviour/test_choice::the_debug_log_says_a_decision_in_one_line"),
        _row("M12", "Work of which there is one kernel runs without complaint; large scans work.",
             "behaviour/test_multikernel::a_sort_is_one_library_kernel_without_complaint",
             "behaviour/test_multikernel::a_scan_of_10_by_3_by_352_by_352",
             "dispatch/test_multikernel::a_single_candidate_is_used_without_complaint_or_timing"),
        _row("M13", "Softmax, products, norms, dropout, scans and others give eager's results, by Python's wrapper and by C's.",
             "behaviour/test_multikernel::softmax_of_2_by_1024_has_several_kernels_and_is_eagers",
             "behaviour/test_multikernel::matmuls_of_4096",
             "behaviour/test_multikernel::layer_norm_of_1024",
             "behaviour/test_multikernel::row_sums_times_a_matmul_are_computed_in_the_products_memory",
             "behaviour/test_multikernel::a_transformer_snippet_drops_what_eager_drops",
             "behaviour/test_multikernel::the_generators_own_stream_drops_anew_each_time_and_repeats_for_a_seed",
             "behaviour/test_multikernel::batch_norm_training_forward_backward_and_statistics",
             "behaviour/test_multikernel::the_same_argument_passed_many_times",
             "behaviour/test_multikernel::a_scratch_buffer_between_two_reductions",
             "behaviour/test_multikernel::cumsum_over_each_dimension",
             "wrapper/test_targets::any_program_does_what_pythons_wrapper_does"),
    ),
    "Hints: kernels for sizes that have not come": (
        _row("H1", "Each hint gets kernels of its own beside those for the traced size.",
             "behaviour/test_hints::each_hint_gets_its_decision_when_the_function_is_compiled",
             "behaviour/test_hints::hints_of_one_regime_have_a_kernel_each"),
        _row("H2", "The hint is part of a config's identity.",
             "behaviour/test_hints::equal_configs_made_for_different_hints_stay_apart",
             "matmul/configs/test_heuristic::duplicates_are_removed_over_every_field_the_hint_included"),
        _row("H3", "Inputs, grid and arguments of a measurement follow the hint.",
             "behaviour/test_hints::candidates_are_timed_at_the_hint_and_nowhere_else",
             "behaviour/test_hints::hinted_kernels_are_made_for_their_hint"),
        _row("H4", "Each shape goes to the best of the kernels.",
             "behaviour/test_choice::each_shape_goes_to_the_candidate_that_is_fastest_there",
             "dispatch/test_multikernel::each_regime_goes_to_its_own_winner"),
        _row("H5", "The published study of hints for `x @ y` is repeated and beaten.",
             "benchmarks/test_gpu_tables::every_hints_winner_is_held_against_the_choice_at_every_size",
             "benchmarks.gpu.hints", "benchmarks.demo_hints"),
        _row("H6", "Hints are for single sizes, derived sizes follow, and the library competes at every shape.",
             "behaviour/test_hints::hints_for_one_size_leave_the_others_as_traced",
             "behaviour/test_hints::sizes_that_derive_from_hinted_ones_are_computed_from_them",
             "behaviour/test_hints::the_library_competes_at_every_shape",
             "dispatch/test_spec::the_length_of_a_row_is_known_to_reach_its_regimes_smallest"),
    ),
    "Which configs are tried": (
        _row("T1", "Configs are records with named fields, on AMD's devices with three more.",
             "matmul/configs/test_tables::every_default_row_is_the_published_one",
             "matmul/configs/test_tables::every_rocm_row_is_the_published_one"),
        _row("T2", "Each family of products, convolutions and attentions has tables, as data.",
             "matmul/configs/test_tables::no_row_changes_unnoticed",
             "matmul/configs/test_tables::a_wrong_file_is_refused_and_says_where",
             "matmul/configs/test_tables::a_family_inherits_whole_tables"),
        _row("T3", "The exhaustive spaces are the published ones.",
             "codegen/test_triton_gemm_configs::an_exhaustive_space_has_the_tables_configs_and_all_others_that_fit",
             "matmul/configs/test_attention::the_sets_that_are_tried"),
        _row("T4", "Blocks follow the hinted size, and configs that a caller excludes are dropped.",
             "matmul/configs/test_heuristic::blocks_are_cut_to_the_next_power_of_two_and_never_below_16",
             "matmul/configs/test_heuristic::int8_operands_keep_32_along_k",
             "matmul/configs/test_heuristic::what_the_caller_cannot_use_is_left_out_with_the_rule"),
        _row("T5", "Configs beyond a block's shared memory or registers are dropped.",
             "matmul/configs/test_heuristic::exhaustive_spaces_are_pruned_by_shared_memory_and_registers"),
        _row("T6", "Warps are bounded, duplicates go, and AMD's devices have rules of their own.",
             "matmul/configs/test_heuristic::a_warp_has_256_elements_at_least",
             "matmul/configs/test_heuristic::persistent_kernels_never_use_two_warps",
             "matmul/configs/test_heuristic::rocm_finishes_in_its_own_way"),
        _row("T7", "Attention has the published defaults by type, head and device.",
             "matmul/configs/test_attention::forward_defaults",
             "matmul/configs/test_attention::backward_defaults",
             "matmul/configs/test_attention::decoding_defaults",
             "matmul/configs/test_attention::rocm_has_defaults_of_its_own"),
        _row("T8", "There is one heuristic a family of devices; users register families and override tables.",
             "matmul/configs/test_heuristic::a_family_is_built_once_even_by_many_threads",
             "matmul/configs/test_heuristic::installed_packages_bring_families_and_a_broken_one_is_told",
             "matmul/configs/test_heuristic::a_table_is_overridden_for_good_or_for_a_while"),
        _row("T9", "Predictions rank the configs where nothing was measured.",
             "cost/test_terms::a_products_terms_add_up_to_its_prediction",
             "codegen/test_triton_gemm_configs::the_prior_knows_large_from_small",
             "dispatch/test_selector::with_tuning_off_the_prediction_decides_and_nothing_is_timed"),
    ),
    "CUTLASS as a source": (
        _row("C1", "int8 and mixed products try CUTLASS beside Triton and ATen; an option says which sources, in which order.",
             "behaviour/test_int8_products::generated_candidates_stand_beside_the_library_s",
             "tuning/test_decide::the_order_of_sources_decides_between_candidates_of_products_that_are_as_fast",
             "candidates/test_cutlass::which_products_there_are",
             "matmul/test_cutlass_mixed::integers_are_known_by_what_becomes_of_bytes"),
        _row("C2", "Layouts and alignment are checked, and empty operands take no kernel.",
             "codegen/test_gemm_int8::what_int8_cannot_be_is_said",
             "behaviour/test_gpu_products::nothing_to_multiply",
             "candidates/test_cutlass::operands_that_the_copy_engine_cannot_take_are_left_to_others"),
        _row("C3", "A model picks which of CUTLASS's configs are compiled, off the critical path.",
             "candidates/test_cutlass::each_size_has_the_configs_that_are_predicted_to_be_fastest",
             "tuning/test_hopeless::what_can_no_longer_win_is_not_compiled"),
        _row("C4", "The published comparison with Triton is repeated.",
             "benchmarks/test_cutlass::the_committed_tables_have_the_published_sizes"),
    ),
    "Learned heuristics": (
        _row("A1", "Collecting data changes no choice.",
             "dispatch/test_collecting::every_candidate_that_can_run_is_measured_and_none_is_chosen_for_it",
             "dispatch/test_collecting::where_no_call_waits_the_background_collects"),
        _row("A2", "Each operation draws random sizes, powers of two, multiples and odd ones.",
             "learn/test_problems::sizes_are_any_powers_multiples_and_odd_by_turns",
             "learn/test_problems::every_operation_runs_at_its_sizes"),
        _row("A3", "Models are picked on one set and reported on another, and may be unsure.",
             "learn/test_train::a_model_learns_what_predictions_miss",
             "learn/test_train::sizes_alone_say_which_part_a_problem_is_in",
             "dispatch/test_learned::one_that_is_unsure_ranks_the_three_that_are_measured"),
        _row("A4", "A model is plain Python, ships with the package, and serves the devices it knows.",
             "learn/test_model::the_python_of_a_model_answers_as_the_model",
             "learn/test_model::a_model_serves_its_architecture_and_devices_like_those_it_knows",
             "learn/test_shipped::it_speaks_on_processors_like_its_own_alone"),
        _row("A5", "A report has the answers, the wrong ones, and what they cost.",
             "cli/test_learn::a_model_is_trained_judged_and_shown"),
        _row("A6", "Learned are padding, and the configs of products and attentions.",
             "learn/test_decisions::whether_to_pad_is_wrong_only_if_the_other_answer_is_better",
             "learn/test_decisions::each_decision_is_posed_by_its_own_examples"),
        _row("A7", "The published results are repeated.", "benchmarks.learned",
             missing="The published table is of another device; ours has its own numbers."),
        _row("A8", "One command trains on any device; a model is silent outside of what it knows.",
             "learn/test_model::outside_of_what_it_was_trained_on_a_model_is_silent",
             "cli/test_learn::collecting_measures_every_candidate_and_goes_on_where_it_stopped",
             "benchmarks.learned"),
    ),
    "The program that calls the kernels": (
        _row("W1", "Programs are structured lines first, without free text, then Python, C or an FX graph.",
             "wrapper/test_lines::no_line_but_a_comment_has_text_in_it",
             "wrapper/test_lines::every_target_has_a_form_for_every_line"),
        _row("W2", "Memory that is free is reused by buffers of its size, type and device.",
             "wrapper/test_memory::a_freed_buffer_of_the_same_size_type_and_device_is_taken_over"),
        _row("W3", "Packages register writers of programs and options, which are part of all keys.",
             "wrapper/test_backends::a_registered_backend_is_found_by_name",
             "wrapper/test_backends::a_backend_may_be_for_one_type_of_device",
             "test_options::a_registered_option_takes_part_in_the_keys_of_measurements_and_plans"),
        _row("W4", "Kernels of all kinds work through all three targets.",
             "wrapper/test_targets::any_program_does_what_pythons_wrapper_does",
             "wrapper/test_fx::a_whole_function_runs_as_a_graph"),
    ),
    "Addresses in several dimensions": (
        _row("B1", "Divisions and moduli of a flat index are recognised as blocks of several dimensions.",
             "passes/test_axes::a_flat_axis_is_split_by_the_other_loops_axes",
             "passes/test_axes::nested_divisions_and_modular_indexing",
             "benchmarks.gpu.addressing",
             missing="Loops use blocks of pointers: block pointers and descriptors gain nothing there "
                     "([addressing.md](addressing.md)). Products use descriptors."),
        _row("B2", "That happens only where the order of points cannot change.",
             "passes/test_axes::an_axis_that_does_not_divide_stays_whole",
             "passes/test_axes::merged_and_split_copies_do_the_same",
             "passes/test_axes::axes_of_a_broadcast_do_not_merge_with_those_it_lacks"),
        _row("B3", "Grouping in an expression hides no pattern.", "passes/test_axes::grouping_wrappers_hide_no_pattern"),
        _row("B4", "Blocks of two axes are chosen where they help, and no inner loop divides.",
             "codegen/test_triton_golden::generated_text",
             "codegen/test_triton_golden::loops_hold_no_division",
             "codegen/test_loops_divisions::divided_positions_are_pythons"),
    ),
    "Memory while tuning": (
        _row("P1", "Tuning does not raise the peak of memory.",
             "tuning/test_clones::a_clone_is_one_allocation_of_its_bytes_whatever_the_strides",
             "tuning/test_headroom::without_room_kernels_run_on_the_callers_memory_and_are_checked_on_the_host"),
        _row("P2", "Training GPT-2 has the same peak with everything measured and with nothing known.", "benchmarks.peak_memory"),
    ),
    "Compiling": (
        _row("X1", "Kernels compile in parallel in other processes; importing starts none.",
             "runtime/test_compile::compilers_run_in_parallel_up_to_the_option",
             "frontend/test_register::importing_polytile_imports_neither_torch_nor_the_compiler"),
        _row("X2", "A key has all that the artefact depends on.",
             "runtime/test_compile::whatever_can_change_the_binary_changes_the_key",
             "store/test_keys::an_upgrade_is_another_environment",
             "store/test_keys::another_device_is_another_key_and_the_store_says_what_it_was"),
    ),
}  # fmt: skip
"""All requirements, by what they are about."""


def requirements() -> Iterator[Requirement]:
    """All of them, in order."""
    for group in GROUPS.values():
        yield from group


def file_of(test: str) -> Path:
    """The file of a test that a row names."""
    return ROOT / "tests" / f"{test.partition('::')[0]}.py"


def absent() -> list[str]:
    """What the rows name and is not there: tests and benchmarks."""
    functions: dict[Path, set[str]] = {}
    gone = []
    for row in requirements():
        for test in row.tests:
            path, name = file_of(test), f"test_{test.partition('::')[2]}"
            if path not in functions:
                nodes = ast.walk(ast.parse(path.read_text(encoding="utf-8"))) if path.exists() else ()
                functions[path] = {node.name for node in nodes if isinstance(node, ast.FunctionDef)}
            gone += [] if name in functions[path] else [f"{row.name}: {test}"]
        gone += [f"{row.name}: {b}" for b in row.benchmarks if not (ROOT / f"{b.replace('.', '/')}.py").exists()]
    return gone


def as_markdown() -> str:
    """The text of docs/requirements.md."""
    rows = list(requirements())
    whole = sum(not row.missing for row in rows)
    lines = [INTRODUCTION, "", f"{whole} of {len(rows)} are met; what the others lack stands in italics."]
    for title, group in GROUPS.items():
        lines += ["", f"## {title}", "", "| | requirement | shown by |", "| --- | --- | --- |"]
        lines += [f"| {row.name} | {row.says}{f' *{row.missing}*' if row.missing else ''} | {_shown(row)} |" for row in group]
    return "\n".join(lines) + "\n"


def _shown(row: Requirement) -> str:
    return " · ".join([*map(_link, row.tests), *(f"`{benchmark}`" for benchmark in row.benchmarks)])


def _link(test: str) -> str:
    """The test's name, which leads to its file."""
    return f"[{test.partition('::')[2].replace('_', ' ')}](../{file_of(test).relative_to(ROOT).as_posix()})"


if __name__ == "__main__":
    PAGE.write_text(as_markdown(), encoding="utf-8")
