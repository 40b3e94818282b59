import importlib
import pkgutil
import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import fcil
from fcil.core.messages import Failure, Message, RoundContext, model_digest
from fcil.core.messages.homes import FOLDERS, HOMES


def model() -> dict[str, Tensor]:
    return {
        "weight": torch.arange(6.0).view(2, 3),
        "bias": torch.tensor([0.5, -0.5]),
        "steps": torch.tensor(7),
    }


def changed(name: str, tensor: Tensor) -> dict[str, Tensor]:
    return {**model(), name: tensor}


def test_a_digest_is_a_short_hexadecimal_name() -> None:
    digest = model_digest(model())
    assert len(digest) == 32
    assert int(digest, 16) >= 0


def test_a_digest_depends_on_values_and_not_on_how_they_are_held() -> None:
    base = model_digest(model())
    assert model_digest(model()) == base
    assert model_digest(dict(reversed(model().items()))) == base
    assert model_digest(changed("weight", model()["weight"].t().contiguous().t())) == base
    assert model_digest(changed("bias", torch.nn.Parameter(model()["bias"]))) == base


def test_a_digest_changes_with_every_bit() -> None:
    base = model()
    digests = {model_digest(base)}
    for name, tensor in base.items():
        raw = tensor.contiguous().reshape(-1).view(torch.uint8)
        for byte in range(len(raw)):
            for bit in range(8):
                flipped = raw.clone()
                flipped[byte] ^= 1 << bit
                digests.add(model_digest({**base, name: flipped.view(tensor.dtype).view(tensor.shape)}))
    assert len(digests) == 1 + 8 * (6 * 4 + 2 * 4 + 8)


def test_a_digest_changes_with_names_shapes_types_and_members() -> None:
    base = model()
    variants = [
        base,
        changed("weight", base["weight"].view(3, 2)),
        changed("weight", base["weight"].double()),
        changed("bias", base["bias"].view(torch.int32)),
        changed("steps", base["steps"].view(1)),
        {("offset" if name == "bias" else name): tensor for name, tensor in base.items()},
        {**base, "weight": base["bias"], "bias": base["weight"]},
        {name: tensor for name, tensor in base.items() if name != "steps"},
        changed("empty", torch.zeros(0)),
        {},
    ]
    assert len({model_digest(variant) for variant in variants}) == len(variants)


def test_a_digest_tells_zero_from_minus_zero() -> None:
    assert model_digest({"x": torch.tensor([0.0])}) != model_digest({"x": torch.tensor([-0.0])})


def test_a_name_cannot_imitate_another_tensor() -> None:
    two = {"a": torch.zeros(0), "b": torch.ones(2)}
    one = {"a:torch.float32:(0,);b": torch.ones(2)}
    assert model_digest(one) != model_digest(two)


@given(st.lists(st.integers(1, 50), max_size=5))
def test_a_moment_counts_its_outputs_and_those_before_the_newest_block(growth: list[int]) -> None:
    blocks = tuple(sum(growth[: position + 1]) for position in range(len(growth)))
    context = RoundContext(3, tuple(map(str, range(sum(growth)))), blocks, 0)
    assert context.classes == sum(growth)
    assert context.old_classes == sum(growth[:-1])


def test_a_failure_says_who_when_where_and_why() -> None:
    text = str(Failure(4, 9, "train", "out of memory"))  # people count rounds from one
    for part in ("client 4", "round 10", "train", "out of memory"):
        assert part in text


def test_two_messages_of_one_name_in_different_modules_of_a_package_are_refused() -> None:
    with pytest.raises(TypeError, match="two messages are called Order"):
        type("Order", (Message,), {"__module__": "fcil.elsewhere"})
    assert Message.registry["Order"].__module__ == "fcil.core.messages.types"


def test_decoding_finds_every_message_of_ours_whatever_is_loaded() -> None:
    program = (
        "import sys\nfrom fcil.core.messages.homes import message_type\n"
        "assert message_type('ServedCheckpoint') is not None and message_type('Nonsense') is None\n"
        "assert 'nacl' not in sys.modules and 'flwr' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
    for module in pkgutil.walk_packages(fcil.__path__, "fcil."):
        if not module.name.startswith(("fcil.testing", "fcil.__main__")):
            importlib.import_module(module.name)
    ours = {kind.__module__ for name, kind in Message.registry.items() if ":" not in name}
    elsewhere = {name for name in ours if not name.startswith(("fcil.testing", *FOLDERS))}
    assert elsewhere - {"fcil.core.messages.types"} == set(HOMES)
