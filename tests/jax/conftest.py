"""JAX's own CPU appears as eight devices, as ours does; it must be told so before its first use."""

import jax

jax.config.update("jax_num_cpu_devices", 8)
