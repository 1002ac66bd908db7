"""How many graphs Dynamo keeps of one function."""

from xla_dynamo.torch_private import dynamo_config

_OF_TORCH = 8
# A `generate` sends a prompt and a token, one text and several, with a mask and without, each
# before and after its sizes were seen to vary.
_ENOUGH = 64


def raise_recompile_limit() -> None:
    """Raise Dynamo's limit where it is torch's own; a limit that the user has set stays.

    Behind the limit Dynamo compiles nothing any more, and new calls run in eager torch.
    """
    if dynamo_config.recompile_limit == _OF_TORCH:
        dynamo_config.recompile_limit = _ENOUGH
