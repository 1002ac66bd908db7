"""Which cases of a sweep a run of the suite takes: a draw by a seed that changes with the commit.

A test marked `every(n)` runs one of n of its cases, and other cases at another commit, so that many
runs cover all of them. Long tests, and tables of like cases, are in `DRAWN`: a run has each of them
with a chance of one in n. What found a fault once stays in every run: `FOUND` has it. `--draw SEED`
repeats a run's draw, which its header prints; `make test-all` runs all cases.
"""

import fnmatch
import os
import subprocess
import zlib
from pathlib import Path

import pytest

DRAW = "XLA_DYNAMO_TESTS_DRAW"
# Cases that found a fault, by their name under tests/: an empty batch, images fewer than samples, a
# bicubic border of bytes, Bessel functions at infinity, an operator that cannot be functional, a
# convolution that reads beyond its image, a cache with a window.
FOUND = (
    "libraries/test_transformers_generation.py::test_a_growing_cache*mistral*",
    "lowerings/test_convolution_gradients.py::*one column*",
    "test_op_sweep.py::*-cdist-*",
    "test_op_sweep.py::*-nn.functional.fractional_max_pool?d-*",
    "test_op_sweep.py::*-polygamma*",
    "test_op_sweep.py::*special-special.*bessel*",
    "test_whole_resampling.py::test_bytes_are_eagers*bicubic*",
)

# Tests that a run has with a chance of one in n, by their name under tests/.
DRAWN = {
    # A whole model or job, whose parts have tests in every run: jobs of two processes that train,
    # recipes over eight devices, models of libraries, long trainings, runs of the benchmark.
    "bench/test_multi_process.py::test_a_mesh": 2,
    "bench/test_run.py::test_a_run_is_written_resumed_and_reported": 2,
    "bench/test_run.py::test_training": 2,
    "libraries/test_transformers.py::test_[!i]*": 2,
    "libraries/test_transformers_formats.py::test_compressed_tensors*": 2,
    "libraries/test_transformers_formats.py::test_torchao_packs*": 2,
    "processes/test_checkpoints.py::test_a_restart_goes_on_from_the_checkpoint": 2,
    "processes/test_fully_sharded.py::test_in_two_processes": 2,
    "processes/test_mesh.py::test_two_processes_of_two_devices": 2,
    "processes/test_process_group.py::test_wrappers_in_two_processes": 2,
    "processes/test_scripts.py::test_ddp_tutorial*": 2,
    "processes/test_torchs_own.py::test_tests_of_the_wheel": 2,
    "spmd/test_recipes_*.py::test_twenty_steps*": 2,
    "spmd/test_recipes_fully_sharded.py::test_by_size_on_all_devices": 2,
    "spmd/test_recipes_fully_sharded.py::test_tensor_parallel_inside": 2,
    "spmd/test_recipes_page.py::test_examples[[]*": 2,
    "spmd/test_recipes_tensor_parallel.py::test_fully_sharded_around": 2,
    "spmd/test_recipes_tensor_parallel.py::test_models_of_transformers[[]*": 2,
    "test_examples.py::*": 2,
    "test_models.py::test_agrees_with_eager[[]*": 2,
    "test_models.py::test_the_loss_reaches_every_parameter[[]*": 2,
    "test_paged_attention.py::test_continuous_batching_calls_it[[]*": 2,
    "test_train_models.py::*": 2,
    # Tables of shapes, dtypes and forms that one rule or one kernel computes.
    "lazy/test_autocast.py::test_*[[]*": 2,
    "lazy/test_fused_optimizers.py::test_values_are_eagers[[]*": 2,
    "lazy/test_op_samples.py::test_a_sample_is_as_on_the_cpu[[]*": 2,
    "lazy/test_overlaps.py::test_*[[]*": 2,
    "lazy/test_recurrent.py::test_*[[]*": 2,
    "lazy/test_sharding.py::test_the_elements_stay_the_same[[]*": 2,
    "lowerings/test_exact_arithmetic.py::*[[]*": 2,
    "runtime/test_torch_kernels.py::test_attention[[]*": 2,
    "runtime/test_torch_kernels.py::test_products_of_groups[[]*": 2,
    "spmd/test_collectives.py::test_*s[[]*": 2,
    "test_few_queries.py::test_numbers[[]*": 3,
    "test_packed_epilogues.py::test_activations_of_special_numbers[[]*": 2,
    "test_packed_weights.py::test_convolutions_have_eagers_numbers_and_strides[[]*": 2,
    "test_planned_convolutions.py::test_convolutions[[]*": 2,
    "test_planned_products.py::test_*s[[]*": 2,
    "test_quantized_weights.py::test_linear[[]*": 2,
    "test_random_edges.py::*[[]*": 2,
    "test_row_products.py::test_a_range_of_the_columns[[]*": 2,
    "test_row_products.py::test_products[[]*": 2,
    "test_row_products.py::test_special_numbers[[]*": 2,
    "test_tuning.py::test_all_forms_compute_the_product[[]*": 2,
}

# What these files test may depend on LLVM: exact arithmetic, sums, what it makes of NaN, options
# that other processes have, and programs that run for long.
OPTIMIZED = (
    "test_cache_processes",
    "test_contraction_barriers",
    "test_exact_arithmetic",
    "test_examples",
    "test_op_sweep",
    "test_random_edges",
    "test_split_reductions",
    "test_storage",
    "test_train_models",
    "test_xla_options",
)


def seed_of_commit() -> str:
    """The commit that is checked out, or "0" where there is no git; for copies of a checkout, DRAW.

    DRAW is a variable of the environment.
    """
    if DRAW in os.environ:
        return os.environ[DRAW]
    command = ["git", "rev-parse", "--short=12", "HEAD"]
    try:
        run = subprocess.run(
            command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return "0"
    return run.stdout.strip()


def is_optimized(path: Path, seed: str) -> bool:
    """Whether LLVM optimizes the programs of a file of tests: of six files, those of one."""
    return path.stem in OPTIMIZED or number(seed, path.stem) % 6 == 0


def number(seed: str, *names: object) -> int:
    """A number of 32 bits that depends on the seed, and differs from name to name."""
    return zlib.crc32(repr((seed, names)).encode())


def mark_slow(items: list[pytest.Item], seed: str) -> None:
    """Mark the cases of tests marked `every(n)`, and those in DRAWN, that are not drawn as slow."""
    seen: dict[tuple, int] = {}
    for item in items:
        if item.get_closest_marker("slow"):
            continue
        is_drawn, name = True, item.nodeid.removeprefix("tests/")
        if mark := item.get_closest_marker("every"):
            group = (item.nodeid.partition("[")[0], *mark.args)
            index = seen[group] = seen.get(group, -1) + 1
            is_drawn = index % mark.args[0] == number(seed, *map(str, group)) % mark.args[0]
        if chances := [n for pattern, n in DRAWN.items() if fnmatch.fnmatchcase(name, pattern)]:
            is_drawn &= number(seed, name) % chances[0] == 0
        if not is_drawn and not any(fnmatch.fnmatchcase(name, pattern) for pattern in FOUND):
            item.add_marker(pytest.mark.slow)
