"""torch's own tests of torch.distributed pass on the device 'xla': some of those in its wheel.

`python -m bench.torch_distributed` runs all of them (docs/device-tests.md).
"""

import pytest

from bench.torch_distributed.crew import Crew
from bench.torch_distributed.names import renamed
from bench.torch_distributed.worker import WHEEL

SECONDS = 60  # for one test
NAMES = [
    "all_gather_cuda",
    "all_gather_cuda_complex",
    "all_gather_into_cat_tensor_cuda",
    "all_gather_v_cuda",
    "all_reduce_sum_cuda",
    "all_reduce_sum_cuda_async",
    "all_reduce_sum_cuda_complex",
    "all_to_all_cuda",
    "all_to_all_single_unequal_split_cuda",
    "average_parameters",
    "barrier_cuda",
    "batch_isend_irecv_nccl",
    "batch_isend_irecv_op_err",
    "batch_isend_irecv_ring_exchange_nccl",
    "batch_isend_irecv_self_nccl",
    "broadcast_cuda",
    "coalescing_manager",
    "coalescing_manager_async",
    "ddp_broadcast_buffers_deprecation_warning",
    "ddp_compile_static_graph",
    "ddp_native_mixed_precision_ignored_params",
    "ddp_sink_noclone",
    "ddp_unused_params_rebuild_buckets_exception",
    "gather_cuda",
    "get_future",
    "get_rank_size_full_group",
    "nccl_backend_bool_reduce",
    "reduce_scatter_v_cuda",
    "reduce_sum_cuda_twice",
    "scatter_cuda_complex",
    "send_recv_nccl",
    "verify_model_across_rank_without_logger",
    "SyncBatchNorm_process_group",
    "1_level_hierarchical_model_averager_equivalent_to_periodic_model_averager",
]


def test_tests_of_the_wheel():
    crew = Crew(2, WHEEL, (), "xla")
    try:
        assert {f"test_{name}" for name in NAMES} <= {test for _, test, _ in crew.tests}
        found = [crew.run("TestDistributedSpawn", f"test_{n}", 2, SECONDS) for n in NAMES]
    finally:
        crew.stop()
    assert [outcome for outcome in found if outcome.how != "passed"] == []


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ('x.cuda(0).to("cuda:1")', 'x.xla(0).to("xla:1")'),
        ("torch.cuda.set_device(1)", "torch.xla.set_device(1)"),
        ("import torch.cuda.nccl", "import torch.cuda.nccl"),
        ('if BACKEND == "nccl"', 'if BACKEND == "xla"'),
        ("def test_broadcast_cuda(self):", "def test_broadcast_cuda(self):"),
        ('os.environ["TORCH_NCCL_BLOCKING_WAIT"]', 'os.environ["TORCH_NCCL_BLOCKING_WAIT"]'),
    ],
)
def test_names_in_the_text_of_tests(text, right):
    assert renamed(text, "xla") == right
