"""A warning is an error if our code raises it, whoever it is attributed to; else it is none."""

import warnings

import pytest


def in_a_library(code: str):
    exec(compile(f"import warnings; {code}", "site-packages/library.py", "exec"), {})


def test_of_a_library_about_its_caller():
    in_a_library("warnings.warn('use the new name', FutureWarning, stacklevel=3)")
    in_a_library("warnings.warn('use the new name', DeprecationWarning)")


@pytest.mark.parametrize("level", [1, 2, 5])
def test_of_our_own(level):
    with pytest.raises(UserWarning, match="ours"):
        warnings.warn("ours", UserWarning, stacklevel=level)
