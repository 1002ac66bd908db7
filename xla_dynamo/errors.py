"""Every exception that xla_dynamo raises on purpose.

    XlaDynamoError
    ├── OptionError            an unknown or ill-typed key of torch.compile(options=...)
    ├── ShardingError          a tensor cannot be sharded over a mesh as was asked
    ├── UnsupportedError       the program asks for something the backend cannot express
    │   ├── UnsupportedOperator    no rule in the lowering table
    │   ├── UnsupportedDtype       a dtype StableHLO has no type for
    │   └── UnsupportedTensor      sparse, quantized, mixed devices, a device with no PJRT plugin
    ├── RefusedByEager         eager PyTorch raises an error at a call, so compiled code does too
    ├── LoweringError          a rule failed, or emitted another type than it promised
    ├── CompileError           PJRT refused the program
    ├── ExecutionError         PJRT failed while running it (out of memory, say)
    │   └── ProcessError           another process of the job is gone, late, or runs something else
    ├── StorageError           a program cannot be written to a file, or read from one
    └── CheckpointError        a checkpoint cannot be written, or is incomplete or damaged

Dynamo wraps what a backend raises while compiling in `torch._dynamo.exc.BackendCompilerFailed`,
whose `inner_exception` is one of these.
"""


class XlaDynamoError(RuntimeError):
    """Root of the tree: catch this to catch whatever xla_dynamo raises on purpose."""


class OptionError(XlaDynamoError, ValueError):
    """An option of `torch.compile(options=...)` is unknown or has the wrong type."""


class ShardingError(XlaDynamoError, ValueError):
    """A mesh is not one, or a tensor cannot be sharded over it as was asked."""


class UnsupportedError(XlaDynamoError):
    """The program asks for something that the backend cannot express."""


class UnsupportedOperator(UnsupportedError):
    """The lowering table has no rule for an operator of the graph."""


class UnsupportedDtype(UnsupportedError):
    """A tensor has a dtype that StableHLO has no type for."""


class UnsupportedTensor(UnsupportedError):
    """A tensor is sparse, quantized, on a device without a PJRT plugin, or on a second device."""


class RefusedByEager(XlaDynamoError):
    """Eager PyTorch refuses a call on the CPU, for its dtypes or for the numbers it is given."""


class LoweringError(XlaDynamoError):
    """A rule failed, or emitted a value of another type than the graph promised."""


class CompileError(XlaDynamoError):
    """PJRT refused the program."""


class ExecutionError(XlaDynamoError):
    """PJRT failed while running an executable."""


class ProcessError(ExecutionError):
    """Another process of the job is gone, stopped or late, or has come to something else."""


class StorageError(XlaDynamoError):
    """A program cannot be written to a file, or a file holds none that can be read."""


class CheckpointError(XlaDynamoError):
    """A checkpoint cannot be written, or one that is to be loaded is incomplete or damaged."""
