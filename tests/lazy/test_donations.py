"""Memory that the user gives to the results of programs."""

import pytest
import torch

import xla_dynamo
from xla_dynamo.errors import ExecutionError
from xla_dynamo.lazy import donations
from xla_dynamo.lazy.contents import cell_of
from xla_dynamo.lazy.placeholders import is_placeholder

pytestmark = pytest.mark.usefixtures("nothing_counted")


@pytest.fixture
def nothing_counted():
    xla_dynamo.sync()
    xla_dynamo.metrics.clear_all()


def aliases():
    return xla_dynamo.metrics.metric_data("InputOutputAliasCount")[1]


def test_a_step_writes_into_memory_that_was_given():
    x, y = torch.rand(4, 2), torch.rand(4, 2)
    given, kept = x.to("xla"), y.to("xla")
    assert donations.set_buffer_donation(given, True)
    assert donations.get_buffer_donation(given)
    assert not donations.get_buffer_donation(kept)
    assert xla_dynamo.metrics.counter_value("XlaSetBufferDonation") == 1
    address = cell_of(given).value.buffer.unsafe_buffer_pointer()
    total = given + kept
    kept += 2
    xla_dynamo.sync()
    assert aliases() == 2
    assert cell_of(total).value.buffer.unsafe_buffer_pointer() == address
    torch.testing.assert_close(total.cpu(), x + y)
    torch.testing.assert_close(kept.cpu(), y + 2)
    assert is_placeholder(given)
    assert not donations.get_buffer_donation(given)
    late = given + 1
    for tensor in (given, late):
        with pytest.raises(ExecutionError, match="set_buffer_donation"):
            tensor.tolist()
    xla_dynamo.sync()  # leaves it out
    del late, tensor
    with pytest.raises(ExecutionError, match="set_buffer_donation"):
        torch.compile(lambda x: x + 1, backend="openxla")(given)


@pytest.mark.parametrize("for_all", [False, True])
def test_other_programs_do_so_where_it_is_set(for_all):
    x = torch.rand(4, 2)
    given = x.to("xla")
    donations.set_buffer_donation(given, True)
    with donations.alias_with_buffer_donor_config(for_all) as before:
        assert before is False
        more = given + 1
        xla_dynamo.unlazy([given, more])
        torch.testing.assert_close(more.cpu(), x + 1)
    assert is_placeholder(given) == for_all
    assert donations.get_buffer_donation(given) != for_all
    assert not donations.is_for_all()


def test_memory_is_kept_where_no_result_fits():
    given = torch.ones(4, 2).to("xla")
    donations.set_buffer_donation(given, True)
    xla_dynamo.sync()  # nothing reads it
    total = given.sum(), given.int()
    xla_dynamo.sync()
    assert [t.sum().item() for t in total] == [8, 8]
    assert donations.get_buffer_donation(given)
    assert donations.set_buffer_donation(given, False)
    doubled = given * 2
    xla_dynamo.sync()
    assert given.tolist() == (doubled / 2).tolist() == [[1, 1]] * 4


def test_a_tensor_that_is_changed_and_given():
    given = torch.ones(4).to("xla")
    donations.set_buffer_donation(given, True)
    given += 2
    assert not donations.get_buffer_donation(given)
    assert not donations.set_buffer_donation(given, True)  # it is still to be computed
    xla_dynamo.sync()
    assert aliases() == 1
    assert given.tolist() == [3] * 4
