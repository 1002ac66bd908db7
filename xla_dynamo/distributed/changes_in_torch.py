"""What a process group of the backend 'xla' changes in torch, for all threads."""

from xla_dynamo.distributed.device_meshes import let_meshes_be_of_processes
from xla_dynamo.distributed.reducers import let_reducers_count_on_host
from xla_dynamo.distributed.shared_draws import let_dtensors_draw


def change_torch() -> None:
    """Let torch's meshes, reducers and draws of DTensors be for the device 'xla', too."""
    let_meshes_be_of_processes()
    let_reducers_count_on_host()
    let_dtensors_draw()
