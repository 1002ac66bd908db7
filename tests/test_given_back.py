"""A program gives back the memory of donated inputs, for the next call. Warm: nothing is cached."""

import gc
import weakref

import pytest
import torch

from tests.compiling import compiled_anew
from xla_dynamo.memory import donated_inputs


@pytest.fixture
def imports(monkeypatch):
    """The addresses of the memory that was imported to be donated."""
    found, real = [], donated_inputs.import_donated

    def imported(tensor, *others):
        found.append(tensor.data_ptr())
        return real(tensor, *others)

    monkeypatch.setattr(donated_inputs, "import_donated", imported)
    return found


def test_what_a_program_gave_back_is_donated_again(monkeypatch, imports):
    """Changes in eager torch between calls are seen: the memory is the tensor's own."""
    monkeypatch.setattr(donated_inputs, "copy_back", None)
    x, run = torch.zeros(64), compiled_anew(lambda x: x.add_(1))
    for calls in range(1, 7):
        run(x)
        assert torch.equal(x, torch.full((64,), 11.0 * calls - 10))
        x.add_(10)
    assert imports == [x.data_ptr()] * 2


def test_tensors_take_turns(imports):
    x, y, run = torch.zeros(64), torch.zeros(64), compiled_anew(lambda x: x.add_(1))
    for _ in range(3):
        run(x), run(x), run(y), run(y)
    assert torch.equal(torch.cat([x, y]), torch.full((128,), 6.0))
    assert len(imports) < 12


def test_memory_that_was_given_back_is_freed_with_its_tensor():
    x, run = torch.zeros(64), compiled_anew(lambda x: x.add_(1))
    for _ in range(4):
        run(x)
    gone = weakref.ref(x.untyped_storage())
    del x
    gc.collect()
    assert gone() is None


def test_a_tensor_with_other_memory(imports):
    x, run = torch.zeros(64), compiled_anew(lambda x: x.add_(1))
    for _ in range(4):
        run(x)
    old, x.data = x.data, torch.full((64,), 5.0)
    for calls in range(1, 5):
        run(x)
        assert torch.equal(x, torch.full((64,), 5.0 + calls))
    assert torch.equal(old, torch.full((64,), 4.0))
    assert imports[-1] == x.data_ptr()


def test_a_conjugate_has_the_address_of_its_tensor():
    def f(x):
        return x.add_(1j)

    x, run = torch.zeros(32, dtype=torch.complex64), compiled_anew(f)
    for given in (x, x, x, x.conj(), x, x.conj(), x.conj()):
        run(given)
    assert torch.equal(x, torch.full((32,), 1j))  # four times there, three times back


def test_a_failed_call_loses_nothing(monkeypatch):
    x, run = torch.zeros(64), compiled_anew(lambda x: x.add_(1))
    for _ in range(3):
        run(x)
    take = donated_inputs.GivenBack.take

    def lost(*args):
        assert take(*args) is not None
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(donated_inputs.GivenBack, "take", lost)
        with pytest.raises(KeyboardInterrupt):
            run(x)
    run(x)
    assert torch.equal(x, torch.full((64,), 4.0))


def test_a_buffer_is_given_once():
    """The next call imports the memory anew, as one in another thread does meanwhile."""
    x, given_back, buffer = torch.zeros(64), donated_inputs.GivenBack(), object()
    for _ in range(2):
        given_back.put(0, x, x.data_ptr(), buffer)
    assert given_back.take(0, x, x.data_ptr()) is buffer
    assert given_back.take(0, x, x.data_ptr()) is None
