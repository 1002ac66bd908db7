"""Checkpoints of a run: when to save, how many to keep, and which are there."""

import contextlib
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any

from xla_dynamo.distributed_checkpoint import preemption
from xla_dynamo.distributed_checkpoint.folders import StepFolders
from xla_dynamo.distributed_checkpoint.planners import SPMDLoadPlanner, SPMDSavePlanner
from xla_dynamo.distributed_checkpoint.together import Together
from xla_dynamo.distributed_checkpoint.transfers import load_state, prepared, save_state
from xla_dynamo.errors import CheckpointError

StateDict = dict[str, Any]


class CheckpointManager:
    """Saves checkpoints of a run, and restores them: PyTorch/XLA's, by name.

    Each checkpoint is a folder `path/STEP` that every reader of `torch.distributed.checkpoint`
    can load. It appears whole or not at all, also where a process is killed while it saves.

    In a job of several processes, which have joined each other, all of them make the manager and
    call each of its methods, in the same order. Each writes the shards that its devices hold, and
    reads those that they are to hold. The folder is one that all of them reach.

    >>> manager = CheckpointManager("checkpoints", save_interval=100, max_to_keep=3)
    >>> state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    >>> manager.save(step, state)  # at each step: saves at each hundredth
    >>> manager.restore(max(manager.all_steps()), state)  # into the tensors, with their marks

    Attributes:
        base_path: the folder of the checkpoints.
        save_interval: the number of steps from one checkpoint to the next.
        max_to_keep: how many checkpoints are kept; 0 for all.
        chkpt_on_preemption: whether a checkpoint is taken after SIGTERM has arrived.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        save_interval: int,
        max_to_keep: int = 0,
        max_pending_async: int = 1,
        num_of_threads: int = 1,
        chkpt_on_preemption: bool = True,
    ) -> None:
        """Look into a folder, which is made, and remove what killed processes have left there.

        Args:
            path: the folder of the checkpoints, on a file system.
            save_interval: the number of steps from one checkpoint to the next.
            max_to_keep: how many checkpoints are kept, those that were saved last; 0 for all.
            max_pending_async: how many calls of `save_async` may wait before one blocks.
            num_of_threads: how many threads write a checkpoint, each a file.
            chkpt_on_preemption: whether SIGTERM does not end the process but lets the next `save`
                or `save_async` take a checkpoint, whatever the step. A second SIGTERM does what
                it did before.

        Raises:
            CheckpointError: a number is out of range, the path is none of a file system, or
                SIGTERM is to be noticed and this is not the main thread.
        """
        numbers = {
            "save_interval": (save_interval, 1),
            "max_to_keep": (max_to_keep, 0),
            "max_pending_async": (max_pending_async, 1),
            "num_of_threads": (num_of_threads, 1),
        }
        for name, (value, least) in numbers.items():
            if value < least:
                raise CheckpointError(f"{name} is {value}; it must be at least {least}")
        if "://" in str(path):
            raise CheckpointError(
                f"{path} is no folder of a file system: save into one, and copy checkpoints from "
                "there, each a folder named by its step"
            )
        self.base_path = os.fspath(path)
        self.save_interval, self.max_to_keep = save_interval, max_to_keep
        self.chkpt_on_preemption = chkpt_on_preemption
        self._threads = num_of_threads
        # What a thread saves is in an order of its own.
        self._together, self._writers = Together(f"{path}"), Together(f"{path}, written")
        self._folders = StepFolders(path)
        self._together.first(f"the folder {self.base_path}", self._folders.clean)
        self._saving = threading.Lock()
        self._most_pending = max_pending_async
        self._room = threading.Semaphore(max_pending_async)
        self._pool: ThreadPoolExecutor | None = None
        self._pending: list[Future[bool]] = []
        self._saved_on_preemption = False
        if chkpt_on_preemption:
            preemption.watch()

    def all_steps(self) -> list[int]:
        """The steps that have a complete checkpoint, in ascending order."""
        return sorted(self._folders.steps())

    def should_save(self, step: int) -> bool:
        """Whether `save` takes a checkpoint at a step: by the interval, or after SIGTERM."""
        if step % self.save_interval == 0:
            return True
        return self.chkpt_on_preemption and self._any(
            f"should_save({step})", lambda: preemption.noticed() and not self._saved_on_preemption
        )

    def save(self, step: int, state_dict: StateDict, force: bool = False) -> bool:
        """Save a checkpoint if `should_save(step)`.

        Args:
            step: the number of the step. A checkpoint that it has already is replaced.
            state_dict: tensors and other values in dicts and lists, or objects that have a
                `state_dict()`.
            force: whether to save whatever the step.

        Returns:
            Whether a checkpoint was saved.

        Raises:
            CheckpointError: it could not be written, or an earlier one of `save_async`.
        """
        if not self._begin(step, force):
            return False
        if self._together.size > 1:
            self.join()  # so that the order is the same in all processes
        return self._save(int(step), prepared(state_dict, self._together))

    def save_async(self, step: int, state_dict: StateDict, force: bool = False) -> bool:
        """Copy the state dict, and save it in another thread: as `save`, whose arguments it takes.

        Waits while `max_pending_async` checkpoints are being saved.

        Returns:
            Whether a checkpoint will be saved.

        Raises:
            CheckpointError: an earlier checkpoint could not be written. `join` raises it, too.
        """
        if not self._begin(step, force):
            return False
        self._room.acquire()
        try:
            planner = prepared(state_dict, self._together)
            planner.hold()
            self._pool = self._pool or ThreadPoolExecutor(1, "checkpoints")
            future = self._pool.submit(self._save, int(step), planner)
        except BaseException:
            self._room.release()
            raise
        future.add_done_callback(lambda _: self._room.release())
        self._pending.append(future)
        return True

    def restore(self, step: int, state_dict: StateDict) -> None:
        """Load the checkpoint of a step: tensors in place, other values into their containers.

        A tensor keeps its mark, whatever it was sharded by when it was saved. The state of an
        optimizer must be there: `prime_optimizer` makes it. Values that are not tensors reach model
        and optimizer by their `load_state_dict`. A checkpoint that is incomplete or damaged changes
        no tensor.

        Raises:
            CheckpointError: there is no such checkpoint, it is incomplete or damaged, or it lacks
                something that the state dict has.
        """
        if self._together.size > 1:
            wait(self._pending)
        self._together.each(f"the checkpoint of step {step}", lambda: self._check(step))
        load_state(state_dict, self._folders.of(step), SPMDLoadPlanner(), self._together)

    def join(self) -> None:
        """Wait for the checkpoints that `save_async` has begun.

        Raises:
            CheckpointError: one could not be written.
        """
        while self._pending:
            self._pending.pop(0).result()

    def reached_preemption(self, step: int) -> bool:
        """Whether SIGTERM has arrived: save, and end the process.

        Raises:
            CheckpointError: the manager was made with `chkpt_on_preemption=False`.
        """
        if not self.chkpt_on_preemption:
            raise CheckpointError("this CheckpointManager has chkpt_on_preemption=False")
        return self._any(f"reached_preemption({step})", preemption.noticed)

    def _any(self, about: str, act: Callable[[], bool]) -> bool:
        return any(self._together.each(about, act))

    def _begin(self, step: int, force: bool) -> bool:
        """Raise what earlier saves have failed of; whether to save now."""
        if step < 0:
            raise CheckpointError(f"steps are numbered from 0, unlike {step}")
        if self._together.size == 1:
            while self._pending and self._pending[0].done():
                self._pending.pop(0).result()
            return force or self.should_save(step)
        if not (force or self.should_save(step)):
            return False
        # All processes raise at one step, whose threads end at times of their own.
        while len(self._pending) >= self._most_pending:
            self._pending.pop(0).result()
        return True

    def _check(self, step: int) -> None:
        if step not in self._folders.steps():
            raise CheckpointError(
                f"{self.base_path} has no complete checkpoint of step {step}; it has those of "
                f"{self.all_steps()}"
            )

    def _save(self, step: int, planner: SPMDSavePlanner) -> bool:
        preempted = preemption.noticed()
        together, about = self._writers, f"the checkpoint of step {step}"
        with self._saving, contextlib.ExitStack() as stack:

            def begin() -> str:
                self._folders.clean()
                return str(stack.enter_context(self._folders.writing(step)))

            def end() -> None:
                stack.close()
                self._forget(step)

            save_state(planner, together.first(about, begin), together, self._threads)
            together.first(f"{about}, in its place", end)
        self._saved_on_preemption = self._saved_on_preemption or preempted
        return True

    def _forget(self, step: int) -> None:
        """Remove the checkpoints that are not to be kept beside the newest, that of a step."""
        if self.max_to_keep:
            others = [other for other in self._folders.steps() if other != step]
            for old in others[: len(others) + 1 - self.max_to_keep]:
                self._folders.remove(old)
