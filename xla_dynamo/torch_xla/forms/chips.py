"""Names of `torch_xla._internal.tpu` that scripts ask before they choose what runs."""

import re

from xla_dynamo import runtime
from xla_dynamo.errors import OptionError
from xla_dynamo.runtime.topology import default_devices


def num_available_chips() -> int:
    """How many TPU devices this process reaches; 0 where the default platform is another."""
    is_tpu = runtime.device_type() == "TPU"
    return runtime.addressable_runtime_device_count() if is_tpu else 0


def version() -> int:
    """The generation of the TPU, as in 4.

    Raises:
        OptionError: the default platform is another, or does not tell it.
    """
    kind = str(default_devices()[0].device_kind)
    found = re.search(r"TPU.*?(\d+)", kind)
    if found is None:
        raise OptionError(f"there is no TPU here, but {kind!r}")
    return int(found[1])
