import struct
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fcil.core.errors import FederationError
from fcil.maths.averaging import RunningMean

positive = st.floats(0.001, 1e6)


def bits(tensor: Tensor) -> bytes:
    return tensor.reshape(-1).view(torch.uint8).numpy().tobytes()


def average_states(states: Sequence[dict[str, Tensor]], weights: Sequence[float] | None = None) -> dict[str, Tensor]:
    running = RunningMean()
    for state, weight in zip(states, weights or [1.0] * len(states), strict=True):
        running.add(state, weight)
    return running.result()


def test_without_weights_the_mean_is_uniform() -> None:
    states = [{"w": torch.tensor([1.0, 2.0])}, {"w": torch.tensor([3.0, 2.0])}, {"w": torch.tensor([8.0, 5.0])}]
    assert average_states(states)["w"].tolist() == [4.0, 3.0]


def test_with_sample_counts_the_mean_is_weighted() -> None:
    states = [{"w": torch.tensor([1.0]), "b": torch.tensor(4.0)}, {"w": torch.tensor([5.0]), "b": torch.tensor(-4.0)}]
    found = average_states(states, [300, 100])
    assert found["w"].tolist() == [2.0]
    assert found["b"].item() == 2.0


def test_a_float32_mean_is_that_of_double_precision() -> None:
    values = torch.randn(10, 50, generator=torch.Generator().manual_seed(0)).mul(1000)
    weights = list(range(1, 11))
    found = average_states([{"w": row} for row in values], weights)["w"]
    wanted = (values.double() * torch.tensor(weights).double()[:, None]).sum(0) / 55
    assert torch.equal(found, wanted.float())


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_integer_buffers_stay_integers(dtype: torch.dtype) -> None:
    states = [{"steps": torch.tensor(value, dtype=dtype)} for value in (10, 20, 30)]
    found = average_states(states)["steps"]
    assert found.dtype == dtype
    assert found.item() == 20
    states[0]["steps"] += 2
    assert average_states(states)["steps"].item() == 21  # the nearest integer, where cutting gives 20


def test_every_tensor_of_a_network_takes_part() -> None:
    net = torch.nn.BatchNorm2d(3).state_dict()
    other = {name: value + 2 for name, value in net.items()}
    found = average_states([net, other])
    assert all(torch.equal(found[name], value + 1) for name, value in net.items())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_type_and_shape_of_a_state_are_kept(dtype: torch.dtype) -> None:
    found = average_states([{"w": torch.ones(2, 0, 3, dtype=dtype), "s": torch.tensor(1.0, dtype=dtype)}] * 2)
    assert {name: (value.dtype, value.shape) for name, value in found.items()} == {
        "w": (dtype, (2, 0, 3)),
        "s": (dtype, ()),
    }


@given(
    st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), max_size=8),
    st.lists(positive, min_size=1, max_size=9),
)
def test_equal_states_stay_equal_to_the_last_bit(values: list[float], weights: list[float]) -> None:
    state = {"w": torch.tensor(values)}
    for shares in (weights, None):
        found = average_states([{"w": state["w"].clone()} for _ in weights], shares)
        assert bits(found["w"]) == bits(state["w"])


@given(st.floats(allow_nan=False, min_value=-1e100, max_value=1e100), st.integers(1, 9))
def test_equal_double_precision_states_stay_equal_to_the_last_bit(value: float, count: int) -> None:
    found = average_states([{"w": torch.tensor(value, dtype=torch.float64)}] * count)["w"]
    assert struct.pack("<d", found.item()) == struct.pack("<d", value)


@given(st.integers(0, 2**40), st.lists(positive, min_size=1, max_size=9))
def test_equal_integer_buffers_stay_equal(value: int, weights: list[float]) -> None:
    states = [{"steps": torch.tensor(value)} for _ in weights]
    assert average_states(states, weights)["steps"].item() == value


@given(st.lists(st.tuples(st.floats(-100, 100), positive), min_size=1, max_size=6), st.randoms())
def test_the_mean_lies_between_the_states_whatever_their_order(pairs: list[tuple[float, float]], shuffler) -> None:
    shuffled = list(pairs)
    shuffler.shuffle(shuffled)
    means = []
    for order in (pairs, shuffled):
        states = [{"w": torch.tensor(value, dtype=torch.float64)} for value, _ in order]
        means.append(average_states(states, [share for _, share in order])["w"].item())
    assert means[0] == pytest.approx(means[1], abs=1e-9)
    values = [value for value, _ in pairs]
    assert min(values) - 1e-9 <= means[0] <= max(values) + 1e-9


def test_the_given_states_are_not_touched() -> None:
    states = [{"w": torch.tensor([1.0])}, {"w": torch.tensor([3.0])}]
    average_states(states)["w"].add_(10)
    average_states(states[:1])["w"].add_(10)
    assert [state["w"].item() for state in states] == [1.0, 3.0]


def test_no_state_is_refused() -> None:
    with pytest.raises(FederationError, match="no model state"):
        average_states([])


@pytest.mark.parametrize("weight", [0.0, -1.0, float("nan"), float("inf")])
def test_bad_weights_are_refused(weight: float) -> None:
    running = RunningMean()
    running.add({"w": torch.tensor([1.0])})
    with pytest.raises(FederationError, match="positive weights, found"):
        running.add({"w": torch.tensor([3.0])}, weight)
    assert (running.count, running.result()["w"].item()) == (1, 1.0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_negative_zero_keeps_its_sign(dtype: torch.dtype) -> None:
    zero = torch.tensor([-0.0, 0.0], dtype=dtype)
    assert bits(average_states([{"w": zero}, {"w": zero}], [0.3, 0.9])["w"]) == bits(zero)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
def test_nothing_is_kept_of_what_was_added(dtype: torch.dtype) -> None:
    lent, rows = {"w": torch.tensor([[2], [4]], dtype=dtype)}, {"w": torch.tensor([1.0, 3.0], dtype=torch.float64)}
    for plain in (True, False):
        running = RunningMean()
        for _ in range(2):
            lent["w"].copy_(torch.tensor([[2], [4]]))
            rows["w"].copy_(torch.tensor([1.0, 3.0]))
            running.add(lent, 1.0, None if plain else rows)
            lent["w"].fill_(77)
            rows["w"].fill_(77)
        assert running.result()["w"].tolist() == [[2], [4]]
        assert running.weight("w").tolist() == (2.0 if plain else [2.0, 6.0])


def test_rows_have_weights_of_their_own_times_that_of_the_state() -> None:
    running = RunningMean()
    first, second = torch.tensor([1.0, 1.0, 0.0]).double(), torch.tensor([0.0, 2.0, 0.0]).double()
    running.add({"w": torch.full((3, 2), 1.0), "b": torch.tensor([1.0])}, 1.0, {"w": first})
    running.add({"w": torch.full((3, 2), 4.0), "b": torch.tensor([5.0])}, 3.0, {"w": second})
    found = running.result({"w": torch.full((3, 2), 9.0), "b": torch.tensor([9.0])})
    torch.testing.assert_close(found["w"], torch.tensor([[1.0, 1.0], [25 / 7] * 2, [9.0, 9.0]]))
    assert found["b"].tolist() == [4.0]
    assert running.weight("w").tolist() == [1.0, 7.0, 0.0]
    assert running.weight("b").item() == 4.0


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64])
def test_rows_that_nobody_weighs_stay_those_of_the_base_even_if_all_states_agree(dtype: torch.dtype) -> None:
    running = RunningMean()
    for _ in range(2):
        running.add({"w": torch.tensor([5, 5], dtype=dtype)}, 1.0, {"w": torch.tensor([1.0, 0.0]).double()})
    assert running.result({"w": torch.tensor([8, 9], dtype=dtype)})["w"].tolist() == [5, 9]


def test_a_state_without_row_weights_counts_in_every_row() -> None:
    for weighed in ((True, False), (False, True)):
        running = RunningMean()
        for value, own in zip((1.0, 3.0), weighed, strict=True):
            rows = {"w": torch.tensor([0.0, 1.0]).double()} if own else None
            running.add({"w": torch.full((2,), value)}, 1.0, rows)
        assert running.weight("w").tolist() == [1.0, 2.0]
        assert running.result()["w"].tolist() == [1.0 if weighed[1] else 3.0, 2.0]
