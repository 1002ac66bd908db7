"""Give a model another method for a while."""

import contextlib
import functools
from collections.abc import Callable, Iterator
from typing import Any

_BEHIND = "xla_dynamo_stands_before"  # on a replacement: the user's own function, or None


@contextlib.contextmanager
def method_replaced(
    model: Any, name: str, wrapped: Callable[[Callable[..., Any]], Callable[..., Any]]
) -> Iterator[None]:
    """While this lasts, a model has a method that calls the one it has otherwise.

    A function that the user has put on this object is called in the class's place, and is there
    again afterwards. Another thread may do the same with the model meanwhile: what it left is gone,
    too.

    Args:
        model: the object.
        name: the method's name.
        wrapped: is given the method, and makes the replacement.
    """
    given = vars(model).get(name)
    users = getattr(given, _BEHIND, given)
    bound = functools.partial(getattr(type(model), name), model)
    replacement = wrapped(bound if users is None else users)
    setattr(replacement, _BEHIND, users)
    setattr(model, name, replacement)
    try:
        yield
    finally:
        if users is None:
            vars(model).pop(name, None)
        else:
            setattr(model, name, users)
