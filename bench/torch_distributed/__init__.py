"""torch's own tests of processes, over the backend "xla": `python -m bench.torch_distributed`."""
