"""The lazy 'xla' device, which `xla_dynamo.device()` makes known to torch."""
