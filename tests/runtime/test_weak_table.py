"""A table's values go when their owners die, and stay if the key has a new owner by then."""

import gc
import threading

from xla_dynamo.runtime.weak_table import WeakTable


class Owner:
    """What may own a value, or be in a cycle."""


class Watches:
    """Counts how often values have gone."""

    def __init__(self):
        self.count, self.table = 0, WeakTable(self.changed)

    def changed(self):
        self.count += 1


def test_a_value_goes_with_its_owner():
    table, first, second = WeakTable(), Owner(), Owner()
    table.put(1, first, "a")
    table.put(2, second, "b")
    assert table.values == {1: "a", 2: "b"}
    assert table.owner(1) is first
    assert table.owner(3) is None
    del first
    assert table.values == {2: "b"}
    assert table.owner(1) is None
    table.remove(2)
    assert not table.values
    del second  # nothing is left to forget
    table.remove(2)


def test_a_new_owner_of_a_key_keeps_its_value():
    table, first, second = WeakTable(), Owner(), Owner()
    table.put(1, first, "a")
    table.put(1, second, "b")
    del first
    assert table.values == {1: "b"}
    assert table.owner(1) is second


def test_an_owner_that_is_found_dead_late():
    """In a cycle of garbage, whose key has a new owner before the cycle is collected."""
    table, first, second = WeakTable(), Owner(), Owner()
    first.me = first
    table.put(1, first, "a")
    del first
    table.put(1, second, "b")
    gc.collect()
    assert table.values == {1: "b"}


def test_the_only_value_of_an_owner():
    table, first, second = WeakTable(), Owner(), Owner()
    table.put(1, first, "a")
    table.put(2, second, "b")
    table.put_alone(3, first, "c")
    assert table.values == {2: "b", 3: "c"}


def test_a_method_is_told_and_not_kept_alive():
    watches, owner = Watches(), Owner()
    table = watches.table
    table.put(1, owner, "a")
    table.put_alone(2, owner, "b")
    assert watches.count == 1
    del owner
    assert watches.count == 2
    owner = Owner()
    table.put(1, owner, "a")
    gc.collect()
    gc.disable()
    try:
        del watches  # at once: no cycle holds it
        assert table._gone() is None
        del owner
        assert not table.values
    finally:
        gc.enable()


def test_a_table_is_not_kept_alive_by_its_owners():
    owner, watches = Owner(), Watches()
    watches.table.put(1, owner, "a")
    del watches, owner  # in this order: the owner outlives the table


def test_owners_die_in_several_threads():
    """Owners of other threads' keys die, and so do cycles, wherever garbage is collected."""
    table, wrong = WeakTable(), []

    def work(start):
        for number in range(3000):
            owner = Owner()
            owner.me = owner
            key = id(owner)
            table.put(key, owner, (start, number))
            table.put(number % 7, owner, None)  # a key that all threads share
            if table.values.get(key) != (start, number):
                wrong.append(key)

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    gc.collect()
    assert not wrong
    assert not table._owners
    assert not table.values
