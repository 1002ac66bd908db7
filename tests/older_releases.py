"""Tests that fail on older releases that we support, by a fault of that release and not of ours.

`conftest.py` skips them there, since some leave torch broken for the tests that follow. On the
releases that the tests are written on no row applies; `make test-oldest` runs on older ones.
"""

import dataclasses
import fnmatch
from importlib import metadata


@dataclasses.dataclass(frozen=True)
class Fault:
    """Tests that an older release of a library fails.

    Attributes:
        library: the distribution.
        until: the newest release with the fault that was tried.
        reason: the fault.
        tests: patterns of their names, as in "test_gradients.py::test_frozen*".
    """

    library: str
    until: str
    reason: str
    tests: tuple[str, ...]

    def applies(self) -> bool:
        """Whether the release that is installed is as old."""
        here = metadata.version(self.library).partition("+")[0].split(".")
        return tuple(map(int, here)) <= tuple(map(int, self.until.split(".")))


FAULTS = (
    Fault(
        "torch",
        "2.11.0",
        "aminmax has no derivative",
        (
            "test_channels_last.py::*extremes*",
            "test_channels_last.py::test_programs",
        ),
    ),
    Fault(
        "torch",
        "2.11.0",
        "torch takes the states of a scan that have other strides, or come twice, for an error",
        (
            "test_while_loop.py::test_gradient_of_a_loop_compiles_once*",
            "test_scan.py::test_gradient_of_a_scan_that_drops",
            "test_scan.py::test_train_step",
        ),
    ),
    Fault(
        "torch",
        "2.11.0",
        "torch cannot trace a torch.Generator",
        (
            "test_generators.py::test_generators_of_a_graph*",
            "test_generators.py::test_one_generator_is_drawn_from_in_order",
        ),
    ),
    Fault(
        "torch",
        "2.11.0",
        "the graph of linalg.inv has no check of its result, with every backend",
        ("test_mutation.py::test_inputs_are_left_alone_when_a_check_fails",),
    ),
    Fault(
        "torch",
        "2.11.0",
        "Dynamo loses a gradient of an autograd.Function that gets a tensor twice",
        ("test_autograd_functions.py::test_function_used_twice",),
    ),
    Fault(
        "torch",
        "2.11.0",
        "Dynamo has no guard on the dtype and requires_grad of a compiled module's parameters, "
        "with every backend: compile anew after module.float() or requires_grad_()",
        (
            "test_gradients.py::test_frozen_parameters",
            "test_models.py::test_agrees_with_float64*bert*",
        ),
    ),
    Fault(
        "torch",
        "2.11.0",
        "a Fourier transform's result has other strides in eager than under a trace",
        ("test_op_sweep.py::*-fft.*",),
    ),
    Fault(
        "torch",
        "2.11.0",
        "the graph breaks: torch looks at a value",
        ("test_op_sweep.py::*quantile*",),
    ),
    Fault(
        "torch",
        "2.11.0",
        "torch's database of operators has not all that later ones have",
        ("test_op_sweep.py::test_rows_name_operators_of_the_database*",),
    ),
    Fault(
        "torch",
        "2.11.0",
        "there is no nn.LinearCrossEntropyLoss",
        ("test_module_sweep.py::test_rows_name_modules_of_the_database",),
    ),
    Fault(
        "torch",
        "2.11.0",
        "a flag that says whether somebody traces is one for all threads, and stays set where "
        "two threads trace at once: all that is compiled later fails, with every backend",
        ("test_dynamic_shapes.py::test_threads_compile_new_sizes*",),
    ),
    Fault(
        "torch",
        "2.11.0",
        "settings that hold for one call, as dynamic=True, may stay set for the process where "
        "two threads call at once: graphs compiled later have dynamic sizes and numbers",
        ("test_dynamic_shapes.py::test_two_threads_want*",),
    ),
    Fault(
        "transformers",
        "5.0.0",
        "it has no operator for the products of experts yet, and loops over them by their values",
        (
            "runtime/test_torch_kernels.py::test_products_of_groups*",
            "test_models.py::*mixtral*",
        ),
    ),
    Fault(
        "jax",
        "0.10.0",
        "jax.scipy.special has no erfcx: the operator runs in eager torch",
        (
            "test_op_sweep.py::*erfcx*",
            "test_op_sweep.py::*log_ndtr*",
        ),
    ),
    Fault(
        "jaxlib",
        "0.10.0",
        "XLA has no choice of what YNNPACK computes",
        (
            "runtime/test_xla_options.py::test_ynnpack_has_the_products_only",
            "runtime/test_xla_options.py::test_an_option_that_this_xla_does_not_have_is_left_out",
        ),
    ),
)


HERE = [fault for fault in FAULTS if fault.applies()]


def fault_of(name: str) -> Fault | None:
    """The row of a test that is expected to fail here, by its name under tests/."""
    for fault in HERE:
        if any(fnmatch.fnmatchcase(name, pattern) for pattern in fault.tests):
            return fault
    return None
