"""The handler of scripts by itself: what it calls, who helps, what fails, and its limits."""

import ctypes
import threading
import time

import pytest
import torch

from tests.runtime.handler_calls import Handler, function, plan
from xla_dynamo.kernels.library_calls import script_calls
from xla_dynamo.runtime.cpu import call_scripts, native_code, onednn, script_layout
from xla_dynamo.runtime.cpu.call_scripts import NULL, Script, number, place_of_slot, slot
from xla_dynamo.runtime.cpu.ffi_structures import INTERNAL, RESOURCE_EXHAUSTED

pytestmark = pytest.mark.skipif(not native_code.can_compile(), reason="nothing compiles here")
POOLS = ["threads", "inline", "late", "none"]
BIG = (1 << 62) + 12345


def script_of(*functions):
    script = Script()
    for one in functions:
        script.call(one)
    return script


def test_arguments():
    """Numbers, words of operands and results, addresses of slots, and slots that are written."""
    given, x, y = [], (ctypes.c_int64 * 2)(3, 4), (ctypes.c_int64 * 2)()
    take = function(lambda *a: given.append(a), arguments=6)
    script = Script()
    script.call(take, NULL, number(BIG), number(-5), slot(1), slot(2), slot(2, 8))
    script.call(take, slot(9), number(1), stored={9: number(17), 23: slot(1, 8)})
    script.call(take, slot(9), slot(23), place_of_slot(23), place_of_slot(8))
    handler = Handler()
    assert handler.call([plan(script)], operands=[x], results=[y])
    first, second, third = given
    addresses = ctypes.addressof(x), ctypes.addressof(y)
    assert first == (0, BIG, -5, *addresses, addresses[1] + 8)
    assert second[:2] == (0, 1)  # the slot is read before it is written
    assert third[:2] == (17, addresses[0] + 8)
    assert third[2] - third[3] == 8 * 15
    assert handler.living == 0


def test_slots_are_empty_in_each_part():
    given = []
    take = function(lambda *a: given.append(a), arguments=2)
    script = Script()
    script.call(take, slot(8), slot(23), stored={8: number(1), 23: number(2)})
    assert Handler().call([plan(script, script, script)])
    assert given == [(0, 0)] * 3


@pytest.mark.parametrize("index", [0, 2])
def test_the_plan_of_this_number_runs(index):
    ran = []
    plans = [plan(script_of(function(lambda i=i: ran.append(i)))) for i in range(3)]
    assert Handler().call(plans, index)
    assert ran == [index]


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("helpers", [0, 1, 5])
def test_each_part_is_done_once(pool, helpers):
    """Whatever becomes of the helpers, who may come when all is over."""
    done = []
    parts = [script_of(function(lambda i=i: done.append(i))) for i in range(6)]
    handler = Handler(pool=pool)
    for _ in range(20):
        done.clear()
        assert handler.call([plan(*parts, helpers=helpers)])
        assert sorted(done) == list(range(6))
    handler.finish()
    assert handler.living == 0
    assert handler.destroyed == (20 * helpers if pool == "none" else 0)
    assert not handler.errors


@pytest.mark.parametrize("pool", POOLS)
def test_openmps_number_of_threads_is_restored(pool):
    handler = Handler(pool=pool)
    assert handler.call([plan(*[script_of(function(lambda: None))] * 2, helpers=1)])
    handler.finish()
    workers = 1 if pool == "none" else 2
    assert sorted(handler.threads) == [1] * workers + [7] * workers


def test_a_kernel_of_torch_has_one_thread_in_every_thread():
    """Also where it is the first one, which sets the number that torch has."""
    found, meeting, before = [], threading.Barrier(3, timeout=60), torch.get_num_threads()

    def part():
        meeting.wait()
        found.append(torch.get_num_threads())

    handler = Handler(threads=onednn.threads())
    torch.set_num_threads(3)
    try:
        assert handler.call([plan(*[script_of(function(part))] * 3, helpers=2)])
        handler.finish()
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
    assert found == [1, 1, 1]


def test_parts_run_side_by_side():
    meeting = threading.Barrier(2, timeout=60)
    handler = Handler()
    assert handler.call([plan(*[script_of(function(lambda: meeting.wait() * 0))] * 2, helpers=1)])
    handler.finish()


def test_who_stays_takes_the_next_call():
    """Two parts that wait for each other need two threads: one is asked for, and stays."""
    meeting = threading.Barrier(2, timeout=60)
    part = script_of(function(lambda: meeting.wait() * 0))
    handler, stays = Handler(), plan(part, part, helpers=1, stays=True)
    for _ in range(20):
        assert handler.call([stays])
    assert handler.scheduled < 20
    handler.finish()  # it leaves
    assert handler.yields
    assert handler.living == 0


def test_who_comes_too_late_does_not_stay():
    """It would take a core from those who work."""
    handler = Handler(pool="late")
    part = script_of(function(lambda: 0))
    assert handler.call([plan(part, part, helpers=1, stays=True)])
    handler.finish()
    assert not handler.yields
    assert handler.living == 0


def test_no_more_stay_than_a_call_has_helpers():
    """Of two calls at once each has a helper, and one of these stays."""
    meeting = threading.Barrier(4, timeout=60)
    part = script_of(function(lambda: meeting.wait() * 0))
    handler = Handler()
    stays = plan(part, part, helpers=1, stays=True)
    callers = [threading.Thread(target=handler.call, args=[[stays]]) for _ in range(2)]
    for one in callers:
        one.start()
    for one in callers:
        one.join()
    scheduled = handler.scheduled
    two = threading.Barrier(2, timeout=60)
    both = script_of(function(lambda: two.wait() * 0))
    assert handler.call([plan(both, both, helpers=1, stays=True)])
    assert handler.scheduled <= scheduled + 1
    handler.finish()
    assert handler.living == 0


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "sched_getcpu"), reason="Linux tells of cores")
def test_a_helper_leaves_the_core_of_the_caller():
    """The kernel may let both share it for long, where another core has nothing to do."""
    main, meeting = threading.get_ident(), threading.Barrier(2, timeout=60)
    part = script_of(function(lambda: meeting.wait() * 0))
    handler = Handler(core=lambda: 2)
    assert handler.call([plan(part, part, helpers=1)])
    handler.finish()
    assert handler.cores == [0b1011, 0b1111]
    for other in (3, -1):
        handler = Handler(core=lambda other=other: 2 if threading.get_ident() == main else other)
        assert handler.call([plan(part, part, helpers=1)])
        handler.finish()
        assert not handler.cores


@pytest.mark.parametrize("pool", POOLS)
def test_many_threads_call_those_who_stay(pool):
    handler, done = Handler(pool=pool), []

    def calls(caller):
        parts = [script_of(function(lambda i=i: done.append((caller, i)))) for i in range(6)]
        stays = plan(*parts, helpers=3, stays=True)
        for _ in range(10):
            assert handler.call([stays])

    callers = [threading.Thread(target=calls, args=[i]) for i in range(6)]
    for one in callers:
        one.start()
    for one in callers:
        one.join()
    handler.finish()
    assert sorted(done) == sorted((c, i) for c in range(6) for i in range(6) for _ in range(10))
    assert handler.living == 0
    assert not handler.errors


def test_who_waits_long_gives_its_core_away():
    """The caller does its part at once, and the other's ends when the caller has slept."""
    handler, taken, ended = Handler(), threading.Event(), []
    main = threading.get_ident()

    def part():
        if threading.get_ident() == main:
            taken.wait(60)  # by the helper
            return
        taken.set()
        while handler.sleeps < 3:
            time.sleep(0.001)
        ended.append(True)

    assert handler.call([plan(*[script_of(function(part))] * 2, helpers=1)])
    assert ended
    assert handler.yields
    handler.finish()
    assert handler.living == 0


def test_other_stages_are_not_calls():
    ran = []
    handler = Handler()
    assert handler.call([plan(script_of(function(lambda: ran.append(1))))], stage=1)
    assert not ran


# --- failures and limits -------------------------------------------------------------------------


def test_a_failure_runs_the_second_script():
    """Which finds the slots as the first has left them."""
    given = []
    first, second = Script(), Script()
    first.call(function(lambda: 3), stored={9: number(5)})
    first.call(function(lambda: given.append("never")))
    second.call(function(lambda a: given.append(a), arguments=1), slot(9))
    handler = Handler()
    assert handler.call([plan((first, second))])
    assert given == [5]
    assert not handler.errors


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("second", [False, True])
def test_a_failure_that_nothing_mends_is_told(pool, second):
    """The other parts are done, and no memory is lost."""
    done = []
    bad, well = function(lambda: -1, "dnnl_thing"), function(lambda: done.append(1))
    failing = (script_of(bad), script_of(well, bad)) if second else script_of(bad)
    handler = Handler(pool=pool)
    assert not handler.call([plan(failing, script_of(well), helpers=1)])
    assert handler.errors == [(INTERNAL, "dnnl_thing failed: is the memory full?")]
    assert len(done) == 1 + second
    handler.finish()
    assert handler.living == 0
    assert handler.threads.count(7) == handler.threads.count(1)
    assert handler.call([plan(script_of(well))])


def test_without_memory_the_call_fails():
    ran = []
    handler = Handler(has_memory=False)
    assert not handler.call([plan(script_of(function(lambda: ran.append(1))))])
    assert handler.errors == [(RESOURCE_EXHAUSTED, "there is no memory for a call")]
    assert not ran


def test_so_many_operands_and_results_has_a_call():
    """The array of plans is one of them."""
    ran, words = [], [ctypes.c_int64() for _ in range(12)]
    plans = [plan(script_of(function(lambda: ran.append(1))))]
    handler = Handler()
    assert handler.call(plans, operands=words[:10], results=words[:1])
    assert handler.call(plans, operands=words[:11])
    for operands, results in ((11, 1), (12, 0), (0, 12)):
        assert not handler.call(plans, operands=words[:operands], results=words[:results])
    assert handler.errors == [(INTERNAL, "a call has more than 12 operands and results")] * 3
    assert len(ran) == 2
    assert handler.living == 0


def test_the_limits_are_known_where_calls_are_written():
    assert call_scripts.FIRST_FREE == script_layout.MOST_ADDRESSES
    with pytest.raises(ValueError, match="more than 12 operands and results"):
        script_calls(0, [None] * 12, [None])


def test_scripts_have_room_for_so_many_arguments():
    with pytest.raises(ValueError, match="more than 14 arguments"):
        Script().call(function(lambda: None), *[NULL] * 15)


@pytest.mark.parametrize("index", [-1, 40])
def test_scripts_have_so_many_slots(index):
    for make in (slot, place_of_slot):
        with pytest.raises(ValueError, match="not among 40"):
            make(index)
    with pytest.raises(ValueError, match="not among 40"):
        Script().call(function(lambda: None), stored={index: NULL})
