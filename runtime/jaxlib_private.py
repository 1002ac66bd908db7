"""Every use of jaxlib's private parts: raw DLPack import and export, compile, execute, oneDNN.

The public roads (`jax.dlpack.from_dlpack`, `jax.jit`) cost 30 µs a tensor and narrow 64-bit types.
`tests/runtime/test_jaxlib_private.py` fails with a clear message when one of these moves.
"""

import functools
import socket
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import jax
import jax._src.distributed
import jax._src.profiler
import jaxlib.version
import numpy as np
from jax._src import lib as _lib
from jax.extend.mlir import ir
from jaxlib import _jax, lapack, xla_client

from xla_dynamo.runtime.mesh import Mesh, Sharding, Tiling
from xla_dynamo.runtime.processes.environment import Seat

# A PJRT buffer as jaxlib returns it. No code uses it as a jax.Array.
Buffer: TypeAlias = _jax.ArrayImpl

# (DLPack capsule, device, stream) -> Buffer: no copy where the memory is aligned for the platform,
# a copy otherwise.
buffer_from_dlpack: Callable[[Any, Any, Any], Buffer] = _jax.dlpack_managed_tensor_to_buffer

# (DLPack capsule, device, stream, copy) -> Buffer. With copy=True jaxlib promises a buffer of the
# caller's own, which a program may be given for good; on the CPU it is a view all the same, where
# the memory is aligned (jaxlib 0.10 to 0.12). `runtime.buffers.donates_in_place` looks.
donatable_buffer_from_dlpack: Callable[[Any, Any, Any, bool], Buffer] = (
    _jax.dlpack_managed_tensor_to_buffer
)

# (Buffer, stream) -> DLPack capsule: waits until the buffer has its value, never copies.
dlpack_from_buffer: Callable[[Buffer, Any], Any] = _jax.buffer_to_dlpack_managed_tensor

LoadedExecutable: TypeAlias = _jax.LoadedExecutable

# Lets JAX's profiler take its trace for ended, where writing it has failed.
forget_trace: Callable[[], None] = jax._src.profiler._profile_state.reset


def stream_of_imports(device: jax.Device) -> int:
    """The handle of a stream that PJRT made for whoever fills the memory of imported buffers.

    On a GPU: `buffer_from_dlpack` takes no other stream. A buffer waits for the work that this one
    was given before.
    """
    return device.get_stream_for_external_ready_events()


def platform_of(device: Any) -> str:
    """The PJRT platform of a device: "cpu", "cuda", "tpu".

    The device itself says "gpu" for CUDA, and so may its client's `platform`.
    """
    return getattr(device.client, "_raw_platform", device.client.platform)


# PJRT would end a process where another has not been heard of for so many seconds: for ever. Who is
# lost is found by `processes.coordinator`, which tells with a Python error.
_NEVER = 10**7


def start_coordination_service(host: str, processes: int) -> tuple[Any, int]:
    """PJRT's coordination service, for as long as the object lives, and the port it listens at."""
    with socket.socket() as probe:  # the service does not tell which port it has taken
        probe.bind((host, 0))
        port = probe.getsockname()[1]
    service = _jax.get_distributed_runtime_service(
        f"{host}:{port}", processes, heartbeat_timeout=_NEVER, shutdown_timeout=1
    )
    return service, port


def connect_to_coordination_service(where: str, rank: int, processes: int, seconds: float) -> Any:
    """The client of the coordination service at "host:port", when all processes have come.

    JAX's own state gets it too, so that JAX's clients in this process (CUDA's is made by JAX) are
    of the same job.

    Raises:
        RuntimeError: they have not come in so many seconds.
    """
    client = _jax.get_distributed_runtime_client(
        where,
        rank,
        init_timeout=int(seconds),
        heartbeat_timeout=_NEVER,
        shutdown_on_destruction=False,
        use_compression=True,
    )
    client.connect()
    state = jax._src.distributed.global_state
    state.client, state.process_id, state.num_processes = client, rank, processes
    bridge = jax._src.xla_bridge
    if "cpu" not in bridge._backends:
        # JAX's CPU, which traces of its functions ask for, is this process's own: the job has one
        # client for each process on the CPU, and that is ours.
        alone = functools.partial(xla_client.make_cpu_client, asynchronous=False)
        bridge.register_backend_factory("cpu", alone, priority=0, fail_quietly=False)
    return client


def make_cpu_client(
    devices: int = 1, seat: Seat | None = None, service: Any = None, host: str = ""
) -> _jax.Client:
    """A PJRT client for the CPU, as so many devices, beside those of the job's other processes.

    It runs a program in the thread that calls it.

    Args:
        devices: as how many it appears.
        seat: which of several processes this one is.
        service: the client of their coordination service.
        host: the address at which they reach this host.

    JAX's own client hands all but the smallest programs to another thread, which costs 30 to 90 µs
    a call and gains nothing here: a call waits for its results.
    """
    if seat is None:
        return xla_client.make_cpu_client(asynchronous=False, num_devices=devices)
    return xla_client.make_cpu_client(
        asynchronous=False,
        num_devices=devices,
        distributed_client=service,
        node_id=seat.rank,
        num_nodes=seat.size,
        collectives=_jax.make_gloo_tcp_collectives(service, hostname=host),
    )


def numbered_devices(client: _jax.Client) -> list[jax.Device]:
    """The devices of all processes, in an order in which those of a process are together.

    Their numbers in it are the ids of a mesh. PJRT's own have gaps between the processes of a job
    of CPUs: 0, 1, 2048, 2049.
    """
    return sorted(client.devices(), key=lambda device: (device.process_index, device.id))


def compile_options(
    debug_options: Mapping[str, Any],
    devices: Sequence[jax.Device],
    replicas: Sequence[jax.Device] = (),
) -> _jax.CompileOptions:
    """PJRT compile options for a program, partitioned over the devices if they are several.

    Keys are those of XLA's DebugOptions. With replicas, as many processes run the program, each on
    a device and values of its own.
    """
    options = _jax.CompileOptions()
    options.num_replicas = len(replicas) or 1
    options.num_partitions = len(devices)
    if len(devices) > 1:
        build = options.executable_build_options
        build.use_spmd_partitioning = build.use_shardy_partitioner = True
        # Arguments are sharded as the module says, results as suits the program.
        build.allow_spmd_sharding_propagation_to_parameters = [False]
        build.allow_spmd_sharding_propagation_to_output = [True]
    rows = [[device] for device in replicas] or [list(devices)]
    ids = np.array([[device.id for device in row] for row in rows], dtype=np.int32)
    options.device_assignment = _jax.DeviceAssignment.create(ids)
    if _lib.cuda_path is not None and platform_of(devices[0]) == "cuda":
        # Where the wheels of CUDA's compiler are, which are on no path of XLA's.
        options.executable_build_options.debug_options.xla_gpu_cuda_data_dir = _lib.cuda_path
    if debug_options:
        options.env_option_overrides = list(debug_options.items())
    return options


def compile_and_load(
    module: ir.Module, devices: Sequence[jax.Device], options: _jax.CompileOptions
) -> LoadedExecutable:
    """Compile a StableHLO module for these devices."""
    return devices[0].client.compile_and_load(module, _jax.DeviceList(tuple(devices)), options)


def serialize_executable(loaded: LoadedExecutable, devices: Sequence[jax.Device]) -> bytes:
    """The bytes of an executable, which `load_executable` reads in another process.

    Only of executables without calls of oneDNN: XLA:CPU reads beyond them.
    """
    return devices[0].client.serialize_executable(loaded)


def load_executable(
    data: bytes, devices: Sequence[jax.Device], options: _jax.CompileOptions
) -> LoadedExecutable:
    """The executable in these bytes, for these devices. It is machine code: PJRT trusts it."""
    return devices[0].client.deserialize_executable(data, _jax.DeviceList(tuple(devices)), options)


def executor(
    loaded: LoadedExecutable,
) -> Callable[[Sequence[Buffer]], list[list[Buffer]]]:
    """The cheapest call of a loaded executable: buffers in, those of each result's devices out."""
    execute_sharded = loaded.execute_sharded

    def execute(buffers: Sequence[Buffer]) -> list[list[Buffer]]:
        return execute_sharded(buffers).disassemble_into_single_device_arrays()

    return execute


def result_tilings(loaded: LoadedExecutable, devices: int) -> list[Tiling]:
    """How each result of a partitioned program lies over its devices, in their order."""
    return [_tiling(sharding, devices) for sharding in loaded.get_output_shardings()]


def _tiling(sharding: Any, devices: int) -> Tiling:
    hlo = xla_client.HloSharding.from_proto(sharding)
    if hlo.is_replicated():
        return Tiling.whole(devices)
    counts = hlo.tile_assignment_dimensions()
    # Behind those of the array's dimensions come dimensions over which the shards repeat.
    behind = len(hlo.subgroup_types()) + hlo.replicate_on_last_tile_dim()
    tiles = np.empty(devices, dtype=object)
    order = hlo.tile_assignment_devices()
    for tile, device in zip(np.ndindex(*counts), order, strict=True):
        tiles[device] = tile[: len(counts) - behind]
    return Tiling(tuple(counts[: len(counts) - behind]), tuple(tiles))


def array_over(
    shape: Sequence[int], sharding: Sharding, devices: Sequence[jax.Device], shards: list[Buffer]
) -> Buffer:
    """A buffer of several devices, made of the shards of this process's, in the mesh's order."""
    named = _named_sharding(sharding, tuple(devices))
    # Without the checks of jax.make_array_from_single_device_arrays, a third of a step's overhead.
    aval = _shaped_array(tuple(shape), shards[0].dtype)
    return _jax.ArrayImpl(aval, named, shards, committed=True, _skip_checks=True)


@functools.lru_cache(maxsize=4096)
def _shaped_array(shape: tuple[int, ...], dtype: np.dtype) -> jax.core.ShapedArray:
    with jax.enable_x64(True):  # else 64-bit types are narrowed
        return jax.core.ShapedArray(shape, dtype)


@functools.lru_cache(maxsize=1024)
def _named_sharding(
    sharding: Sharding, devices: tuple[jax.Device, ...]
) -> jax.sharding.NamedSharding:
    grid = np.array(devices).reshape(sharding.mesh.mesh_shape)
    axes = (names or None for names in sharding.axes)
    mesh = jax.sharding.Mesh(grid, sharding.mesh.axis_names)
    return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*axes))


def moved_over_processes(
    shape: Sequence[int],
    tiling: Tiling,
    shards: list[Buffer],
    target: Sharding,
    devices: Sequence[jax.Device],
) -> Buffer:
    """A buffer of the devices of several processes, all of which call this, sharded as `target` is.

    It is made of the shards of this process's devices, which lie as the tiling says. Those of an
    array that is not sharded evenly are padded to one size, as XLA's partitioner leaves them.
    """
    counts = tiling.counts or (1,) * len(shape)
    padded = tuple(-(-n // c) * c for n, c in zip(shape, counts, strict=True))
    with jax.enable_x64(True):  # else 64-bit types are narrowed
        aval = jax.core.ShapedArray(padded, shards[0].dtype)
        lying = _tiled_sharding(tiling, len(shape), tuple(devices))
        array = _jax.ArrayImpl(aval, lying, shards, committed=True, _skip_checks=True)
        move = _mover(tuple(shape), _named_sharding(target, tuple(devices)))
        return jax.block_until_ready(move(array))


@functools.lru_cache(maxsize=1024)
def _mover(shape: tuple[int, ...], target: jax.sharding.NamedSharding) -> Callable[..., Any]:
    return jax.jit(lambda x: x[tuple(map(slice, shape))], out_shardings=target)


@functools.lru_cache(maxsize=1024)
def _tiled_sharding(
    tiling: Tiling, rank: int, devices: tuple[jax.Device, ...]
) -> jax.sharding.NamedSharding:
    """A tiling as a sharding over its own mesh: an axis a dimension, and one of repetitions."""
    counts = tiling.counts or (1,) * rank
    order = sorted(range(len(devices)), key=lambda i: (tiling.shards[i], i))
    grid = np.array([devices[i] for i in order]).reshape(*counts, -1)
    names = [f"dim_{i}" for i in range(rank)]
    mesh = jax.sharding.Mesh(grid, (*names, "again"))
    return jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*names))


def sharding_of(buffer: Buffer) -> Sharding | None:
    """How a buffer of several devices is sharded over them; None for one of a single device."""
    named = buffer.sharding
    return _sharding_of(named) if isinstance(named, jax.sharding.NamedSharding) else None


@functools.cache
def device_numbers(client: _jax.Client) -> dict[int, int]:
    """The numbers of `numbered_devices`, by the ids of PJRT."""
    return {device.id: number for number, device in enumerate(numbered_devices(client))}


@functools.lru_cache(maxsize=1024)
def _sharding_of(named: jax.sharding.NamedSharding) -> Sharding:
    grid = named.mesh.devices
    numbers = device_numbers(grid.flat[0].client)
    mesh = Mesh([numbers[d.id] for d in grid.flat], grid.shape, named.mesh.axis_names)
    names = ((e,) if isinstance(e, str) else tuple(e or ()) for e in named.spec)
    return Sharding(mesh, tuple(names))


def shards_of(buffer: Buffer) -> list[Buffer]:
    """The buffers of the devices that a buffer of several devices consists of."""
    return buffer._arrays


def buffer_address(buffer: Buffer) -> int:
    """The memory address of a buffer's first byte."""
    return buffer.unsafe_buffer_pointer()


def copy_to_device(buffer: Buffer, device: jax.Device) -> Buffer:
    """A buffer of a device's own with a copy of another's elements."""
    with jax.enable_x64(True):  # else 64-bit types are narrowed
        return jax.device_put(buffer, device, may_alias=False)


def buffer_of_array(array: np.ndarray, device: jax.Device) -> Buffer:
    """A buffer of a device with a copy of an array's elements, of the array's own dtype."""
    with jax.enable_x64(True):  # else 64-bit types are narrowed
        return jax.device_put(array, device, may_alias=False)


def array_of_buffer(buffer: Buffer) -> np.ndarray:
    """An array with a copy of a buffer's elements, which may be written into."""
    return np.array(buffer)


def calls_onednn() -> bool:
    """Whether this version of jaxlib takes custom calls of oneDNN in the form that we write.

    Nothing in jaxlib tells, and a call of another form ends the process: so only versions whose
    onednn_config.proto is known.
    """
    return (0, 10) <= jaxlib.version.__version_info__[:2] < (0, 13)


def initialize_lapack() -> None:
    """Load the LAPACK that custom calls need, as JAX's lowering rules do when they write one."""
    import jax.lax.linalg  # which registers the calls

    assert jax.lax.linalg
    lapack._lapack.initialize()


def varying_axes(x: Any) -> frozenset[str]:
    """The axes of a mesh over which an array, or an abstract one, varies inside `jax.shard_map`.

    Without that, and under `check_vma=False`, there are none.
    """
    aval = x if isinstance(x, jax.core.ShapedArray) else jax.typeof(x)
    return aval.mat.varying


def result_type(
    shape: Sequence[int], dtype: np.dtype, operands: Sequence[jax.core.ShapedArray]
) -> jax.core.ShapedArray:
    """The abstract array of a result that varies as its operands do, which are alike in that."""
    if not operands or not varying_axes(operands[0]):
        return jax.core.ShapedArray(shape, dtype)
    like: Any = operands[0]
    whole = jax.sharding.PartitionSpec(*[None] * len(shape))
    sharding = jax.sharding.NamedSharding(like.sharding.mesh, whole)
    return jax.core.ShapedArray(shape, dtype, sharding=sharding, manual_axis_type=like.mat)


def hlo_computation(module: bytes, returns_tuple: bool) -> Any:
    """A module of StableHLO, as text or bytecode, as XLA's computation."""
    convert = _jax.mlir.mlir_module_to_xla_computation
    return convert(module, use_tuple_args=False, return_tuple=returns_tuple)


def stablehlo_of_hlo(proto: bytes) -> bytes:
    """A serialized HloModuleProto as a module of StableHLO."""
    return _jax.mlir.hlo_to_stablehlo(proto)


@functools.cache
def interpret_pallas_on_cpu() -> None:
    """Let the CPU run kernels of Pallas that are not called with `interpret=True`, as loops."""
    from jax._src.pallas import pallas_call as own

    def interpreted(ctx: Any, *operands: Any, interpret: Any, **others: Any) -> Any:
        return own._pallas_call_lowering(ctx, *operands, interpret=interpret or True, **others)

    jax.interpreters.mlir.register_lowering(own.pallas_call_p, interpreted, platform="cpu")
