"""What the owner orders: pause and resume, pin and unpin, load and unload."""

from __future__ import annotations

from hearth.config.settings import ModelSettings, PolicyName
from hearth.scheduling import inputs
from hearth.scheduling.forecast import forecast, slot_is_free
from tests.support.shell import Shell, house_settings

SIZES = {"a": ModelSettings(vram_gb=10.0), "b": ModelSettings(vram_gb=10.0), "c": ModelSettings(vram_gb=18.0)}


def roomy(*resident: str, home: str = "") -> Shell:
    """24 GB: a and b fit beside each other, c beside neither."""
    return Shell(house_settings(vram_gb=24.0, models=SIZES, home=home), resident=resident)


def pause(house: Shell, *, paused: bool = True) -> list[str]:
    return house.tell(inputs.ExternalPaused(paused=paused))


def pin(house: Shell, model: str | None) -> list[str]:
    return house.tell(inputs.ModelPinned(model=model))


def load(house: Shell, model: str) -> list[str]:
    return house.tell(inputs.LoadOrdered(model=model))


def unload(house: Shell, model: str) -> list[str]:
    return house.tell(inputs.UnloadOrdered(model=model))


# Pause.


def test_while_external_work_is_paused_it_waits_and_internal_work_goes_on():
    house = Shell(resident=("a",))
    pause(house)
    house.arrive("a")
    assert house.said == []
    house.internal("a")
    assert house.said == ["start 2 on a"]
    assert house.finish(2) == []
    assert pause(house, paused=False) == ["start 1 on a"]


def test_what_runs_when_a_pause_begins_finishes():
    house = Shell(resident=("a",))
    first, _ = house.arrive("a"), house.arrive("a")
    assert pause(house) == []
    assert house.finish(first) == []


def test_nothing_is_loaded_for_paused_work():
    house = Shell(resident=("a",))
    pause(house)
    house.arrive("b")
    assert house.said == []
    assert pause(house, paused=False) == ["unload a"]


def test_a_swap_that_is_under_way_for_paused_work_does_not_keep_the_house_waiting():
    house = Shell(resident=("a",))
    house.arrive("b")
    pause(house)
    assert house.unloaded() == []
    house.internal("c")
    assert house.said == ["load c"]
    assert house.loaded() == ["start 2 on c"]


def test_a_model_that_was_loaded_for_paused_work_may_go():
    house = Shell(resident=("a",))
    house.arrive("b")
    house.unloaded()
    pause(house)
    assert house.loaded() == []
    house.internal("a")
    assert house.said == ["unload b"]


def test_a_house_in_which_only_paused_work_waits_is_at_rest_and_goes_home():
    house = Shell(house_settings(home="h", restore_home_delay_s=30.0), resident=("a",))
    pause(house)
    house.arrive("a")
    house.at(29.9)
    assert not house.unloading
    house.at(30.0)
    assert house.unloading == ["a"]
    assert house.swap() == []
    assert pause(house, paused=False) == ["unload h"]


def after_a_loop_of_two_models() -> Shell:
    """a is in memory, and the caller is likely to ask for b next."""
    house = Shell(house_settings(policy=PolicyName.ADAPTIVE), resident=("b",))
    for _ in range(5):
        for model in ("b", "a"):
            house.at(house.now + 2.0)
            sequence = house.arrive(model, caller="agent")
            if house.unloading:
                house.swap(1.0)
            house.finish(sequence)
    return house


def test_internal_work_for_any_model_does_not_wait_for_paused_work_to_bring_one():
    house = Shell()
    pause(house)
    house.arrive("a")
    house.arrive(None)
    house.internal(None)
    assert house.said == ["fail 3 no_model"]
    assert pause(house, paused=False) == ["load a"]


def test_nothing_is_loaded_beforehand_for_callers_who_are_paused():
    house = after_a_loop_of_two_models()
    pause(house)
    house.at(house.now + 1.0)
    assert not house.unloading


def test_no_guess_swaps_the_pinned_model_away():
    house = after_a_loop_of_two_models()
    pin(house, "a")
    house.at(house.now + 1.0)
    assert not house.unloading


def test_the_wait_of_paused_work_cannot_be_told():
    house = Shell(resident=("a",))
    pause(house)
    waiting = house.arrive("a")
    ours = house.internal("b")
    starts = forecast(house.state, house.now)
    assert waiting not in starts
    assert ours in starts
    assert not slot_is_free(house.state, house.state.entries[waiting].item)


def test_an_item_that_may_not_wait_longer_expires_in_a_pause():
    house = Shell(resident=("a",))
    pause(house)
    house.arrive("a", max_wait_s=5.0)
    house.at(5.0)
    assert house.log[-1] == (5.0, "expire 1")


# Pin.


def test_no_external_item_swaps_the_pinned_model_away_however_long_it_waits():
    house = Shell(resident=("a",))
    assert pin(house, "a") == []
    house.arrive("b")
    house.at(10_000.0)
    assert house.log == []
    own = house.arrive("a")
    assert house.said == [f"start {own} on a"]
    assert house.finish(own) == []
    assert pin(house, None) == ["unload a"]


def test_external_work_for_a_model_that_fits_beside_the_pinned_one_is_served():
    house = roomy("a")
    pin(house, "a")
    house.arrive("b")
    assert house.said == ["load b"]


def test_the_house_never_waits_for_a_pin_and_the_pinned_model_comes_back():
    house = Shell(resident=("a",))
    pin(house, "a")
    ours = house.internal("b")
    assert house.said == ["unload a"]
    assert house.swap() == [f"start {ours} on b"]
    house.finish(ours)
    house.at(house.state.settings.gpu.restore_home_delay_s)
    assert house.unloading == ["b"]
    assert house.unloaded() == ["load a"]


def test_the_pinned_model_comes_back_instead_of_the_home_model():
    house = Shell(house_settings(home="h"), resident=("b",))
    pin(house, "a")
    house.swap()
    ours = house.internal("b")
    house.swap()
    house.finish(ours)
    house.at(house.now + 30.0)
    assert house.unloading == ["b"]
    assert house.unloaded() == ["load a"]
    house.loaded()
    assert house.timer is None
    pin(house, None)
    house.at(house.now + 30.0)
    assert house.unloading == ["a"]


def test_pinning_asks_for_the_model_and_unpinning_takes_that_back():
    house = Shell(resident=("b",))
    running = house.arrive("b")
    assert pin(house, "a") == []
    assert pin(house, None) == []
    assert house.finish(running) == []
    assert pin(house, "a") == ["unload b"]


def test_a_model_that_the_owner_pins_is_not_unloaded_for_an_earlier_order():
    house = roomy("a")
    house.internal("b")
    unload(house, "a")
    pin(house, "a")
    assert house.loaded() == ["start 1 on b"]


def test_a_pinned_model_that_stops_answering_is_loaded_again():
    house = Shell(resident=("a",))
    pin(house, "a")
    house.fail(house.arrive("a"), inputs.Fault.FIRST_BYTE_TIMEOUT)
    assert house.said == ["unload a"]
    assert house.unloaded() == ["load a"]


# Load.


def test_a_model_that_the_owner_orders_comes_as_soon_as_the_house_is_at_rest():
    house = Shell(resident=("a",))
    running = house.arrive("a")
    assert load(house, "b") == []
    assert house.finish(running) == ["unload a"]
    assert house.unloaded() == ["load b"]
    assert house.loaded() == []
    assert house.state.orders.wanted == ()


def test_a_model_that_fits_beside_what_is_there_comes_at_once():
    house = roomy("a")
    house.arrive("a")
    house.arrive("a")
    assert load(house, "b") == ["load b"]


def test_ordered_models_come_one_after_the_other_in_the_order_of_the_orders():
    house = roomy()
    assert load(house, "b") == ["load b"]
    assert load(house, "a") == []
    assert house.loaded() == ["load a"]


def test_waiting_work_goes_before_an_order():
    house = Shell(resident=("a",))
    running = house.arrive("a")
    house.arrive("c")
    load(house, "b")
    assert house.finish(running) == ["unload a"]
    assert house.unloaded() == ["load c"]


def test_an_ordered_model_stays_as_long_as_any_before_the_home_model_comes_back():
    house = Shell(house_settings(home="h"), resident=("h",))
    house.at(1000.0)
    assert load(house, "b") == ["unload h"]
    house.swap(5.0)
    house.at(1034.9)
    assert not house.unloading
    house.at(1035.0)
    assert house.unloading == ["b"]


def test_an_order_whose_load_fails_twice_is_given_up():
    house = Shell()
    assert load(house, "b") == ["load b"]
    house.load_failed()
    house.at(2.0)
    assert house.log[-1] == (2.0, "load b")
    assert house.load_failed() == []
    assert house.quiesce() == 0


def test_an_order_for_what_is_there_changes_nothing():
    house = Shell(resident=("a",))
    assert load(house, "a") == []
    assert house.state.orders.wanted == ()


def test_an_order_waits_for_the_model_server():
    house = Shell()
    house.tell(inputs.BackendDown())
    assert load(house, "b") == []
    assert house.tell(inputs.BackendUp()) == ["load b"]


def test_work_for_any_model_waits_for_the_one_that_is_ordered():
    house = Shell()
    house.tell(inputs.BackendDown())
    load(house, "b")
    anywhere = house.arrive(None)
    assert house.tell(inputs.BackendUp()) == ["load b"]
    assert house.loaded() == [f"start {anywhere} on b"]


def test_a_load_order_does_not_touch_the_pinned_model():
    house = Shell(resident=("a",))
    pin(house, "a")
    assert load(house, "b") == []


# Unload.


def test_a_model_that_nobody_uses_goes_at_once():
    house = roomy("a", "b")
    assert unload(house, "a") == ["unload a"]
    assert house.unloaded() == []
    assert house.quiesce() == 0


def test_the_home_model_that_was_ordered_out_stays_out_until_something_was_loaded():
    house = Shell(house_settings(home="h"), resident=("h",))
    unload(house, "h")
    house.unloaded()
    house.at(10_000.0)
    assert not house.loading
    sequence = house.arrive("b")
    house.loaded()
    house.finish(sequence)
    house.at(10_030.0)
    assert house.unloading == ["b"]


def test_an_unload_waits_for_the_swap_under_way():
    house = roomy("a")
    house.internal("b")
    assert unload(house, "a") == []
    assert house.loaded() == ["start 1 on b", "unload a"]


def test_a_model_that_is_ordered_out_while_it_loads_goes_when_it_is_there_and_stays_away():
    house = Shell(house_settings(home="h"))
    load(house, "h")
    assert unload(house, "h") == []
    assert house.loaded() == ["unload h"]
    house.unloaded()
    assert house.at(1000.0).loading == []


def test_a_model_that_is_ordered_out_and_in_again_while_it_loads_stays():
    house = Shell()
    load(house, "b")
    unload(house, "b")
    load(house, "b")
    assert house.loaded() == []


def test_whoever_asks_for_a_model_meanwhile_keeps_it():
    house = roomy("a")
    house.internal("b")
    unload(house, "a")
    house.arrive("a")
    assert house.said == ["start 2 on a"]
    assert house.loaded() == ["start 1 on b"]
    assert house.finish(2) == []


def test_paused_work_keeps_no_model():
    house = Shell(resident=("a",))
    pause(house)
    house.arrive("a")
    assert not house.state.is_asked_for("a")
    assert unload(house, "a") == ["unload a"]
    house.unloaded()
    assert pause(house, paused=False) == ["load a"]


def test_the_latest_order_for_a_model_counts():
    house = roomy("c")
    running = house.internal("c")
    load(house, "a")
    unload(house, "a")
    assert house.finish(running) == []
    running = house.internal("c")
    unload(house, "c")
    load(house, "c")
    assert house.finish(running) == []


def test_a_model_that_does_not_leave_is_told_to_go_again():
    house = Shell(resident=("a",))
    unload(house, "a")
    assert house.unload_failed() == []
    house.at(5.0)
    assert house.log[-1] == (5.0, "unload a")


def test_a_load_that_new_settings_leave_no_room_for_is_void():
    house = roomy("a")
    first = house.arrive("a")
    load(house, "c")
    house.tell(inputs.PolicyChanged(settings=house_settings(vram_gb=12.0, models=SIZES)))
    house.finish(first)
    assert (house.loading, house.unloading, house.state.orders.wanted) == ([], [], ())
