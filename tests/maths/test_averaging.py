import struct

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fcil.errors import FederationError
from fcil.maths.averaging import average_states

positive = st.floats(0.001, 1e6)


def bits(tensor: Tensor) -> bytes:
    return tensor.reshape(-1).view(torch.uint8).numpy().tobytes()


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


@pytest.mark.parametrize(
    "weights", [[1.0], [1.0, 2.0, 3.0], [], [1.0, 0.0], [1.0, -1.0], [1.0, float("nan")], [1.0, float("inf")]], ids=repr
)
def test_bad_weights_are_refused(weights: list[float]) -> None:
    states = [{"w": torch.tensor([1.0])}, {"w": torch.tensor([3.0])}]
    with pytest.raises(FederationError, match="weights"):
        average_states(states, weights)
