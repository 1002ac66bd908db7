"""A `Trainer` of Lightning, with an accelerator and a strategy of the user's: it has none of 'xla'.

Both are Lightning's own way to add a device.
"""

import bench  # noqa: F401  isort: skip  (see xla_dynamo/torchvision_operators.py)

import os
import sys

import lightning
import torch
from lightning.pytorch.accelerators import Accelerator
from lightning.pytorch.strategies import DDPStrategy
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler

import xla_dynamo
from tests.processes.scripts import toy


class XlaAccelerator(Accelerator):
    """The device 'xla', of which each process has one."""

    def setup_device(self, device):
        pass

    def teardown(self):
        pass

    def get_device_stats(self, device):
        return {}

    @staticmethod
    def parse_devices(devices):
        return int(devices)

    @staticmethod
    def get_parallel_devices(devices):
        return [torch.device("xla", number) for number in range(devices)]

    @staticmethod
    def auto_device_count():
        return xla_dynamo.runtime.local_process_count()

    @staticmethod
    def is_available():
        return True

    @staticmethod
    def name():
        return "xla"


class XlaDDPStrategy(DDPStrategy):
    """DDP on it; Lightning's asks for a stream of CUDA where it is given numbers of devices."""

    def determine_ddp_device_ids(self):
        return None


class Module(lightning.LightningModule):
    """The toy model with its step."""

    def __init__(self):
        super().__init__()
        self.model = toy.new_model()
        del self.model.other
        self.losses = []

    def training_step(self, batch, number):
        x, labels = batch
        loss = nn.MSELoss()(self.model(x), labels)
        self.log("loss", loss, sync_dist=True)
        self.losses.append(loss.detach())
        return loss

    def configure_optimizers(self):
        return toy.new_optimizer(self)


def main():
    xla_dynamo.device()
    count = int(os.environ["WORLD_SIZE"])
    trainer = lightning.Trainer(
        accelerator=XlaAccelerator(),
        strategy=XlaDDPStrategy(process_group_backend="xla"),
        devices=count,
        max_epochs=1,
        use_distributed_sampler=False,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=sys.argv[1],
    )
    module, rows = Module(), toy.dataset()
    rank = int(os.environ["RANK"])
    sampler = DistributedSampler(rows, count, rank, shuffle=False)  # Lightning's own would shuffle
    trainer.fit(module, DataLoader(rows, batch_size=toy.BATCH // count, sampler=sampler))
    toy.hand_over(sys.argv[1], trainer.global_rank, [loss.item() for loss in module.losses])


if __name__ == "__main__":
    main()
