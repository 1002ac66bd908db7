"""The command that makes one checkpoint of those of all processes.

`python -m xla_dynamo.distributed.fsdp.consolidate_sharded_ckpts --ckpt_prefix PREFIX`
"""

import argparse

from xla_dynamo.distributed.fsdp.consolidation import consolidate_sharded_model_checkpoints
from xla_dynamo.errors import CheckpointError


def main() -> None:
    """Read the command line, and print where the checkpoint was saved."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--ckpt_prefix", required=True, help="what the files' paths begin with")
    parser.add_argument("--ckpt_suffix", default="*.pth", help="what they end with: a pattern")
    parser.add_argument(
        "--save_path", default="", help="where to save: PREFIX_consolidated.pth unless given"
    )
    given = parser.parse_args()
    try:
        _, path = consolidate_sharded_model_checkpoints(
            given.ckpt_prefix, given.ckpt_suffix, given.save_path
        )
    except CheckpointError as error:
        parser.exit(1, f"{error}\n")
    print(f"saved {path}")


if __name__ == "__main__":
    main()
