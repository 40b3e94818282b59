"""The fields of a message are checked where its class is defined, here with annotations that are still text."""

from __future__ import annotations

import runpy
import sys
import types
from collections.abc import Sequence
from dataclasses import InitVar, dataclass, fields
from enum import IntEnum
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, NewType, Optional, TypeVar

import pytest
import torch
from torch import Tensor

from fcil.core.messages import CodecError, Message, Shape, decode, encode
from fcil.core.messages.fields import ALLOWED
from fcil.core.messages.types import message_fields, wire_name
from fcil.methods import bic, methods

Alias = dict[str, Tensor]
Number = TypeVar("Number")
Kilograms = NewType("Kilograms", int)


class Colour(IntEnum):
    RED = 1


@dataclass(frozen=True)
class Tree(Message):
    """A message that holds messages of its own kind."""

    name: str
    children: tuple[Tree, ...] = ()
    best: Tree | None = None
    count: ClassVar[int] = 0


@dataclass(frozen=True)
class Branch(Tree):
    """It inherits fields and adds one."""

    length: float = 0.0


def defined(hint: Any) -> type[Message]:
    body = {"__annotations__": {"value": hint}, "__module__": __name__}
    return dataclass(frozen=True)(types.new_class("Defined", (Message,), {}, lambda space: space.update(body)))


@pytest.mark.parametrize(
    "hint",
    [
        int,
        None,
        Tensor,
        Message,
        Tree,
        "Tree",
        "int | None",
        Optional[str],  # noqa: UP045
        Alias,
        tuple[int, ...],
        tuple[int, str, "Tree"],
        dict[str, dict[str, Tensor]],
        tuple[dict[str, float | None], ...],
        Annotated[Tensor, Shape(("samples",), torch.int64)],
        Annotated[Tensor | None, Shape(("samples",), torch.int64)],
        tuple[Annotated[Tensor, Shape(("samples",), torch.int64)], ...],
        Annotated[int, "seconds"],
    ],
    ids=str,
)
def test_what_may_be_sent_may_be_a_field(hint: Any) -> None:
    assert list(message_fields(defined(hint))) == ["value"]


@pytest.mark.parametrize(
    "hint",
    [
        Literal["a", "b"],
        "Literal[1]",
        "int | str",
        "int | str | None",
        Any,
        object,
        list,
        list[int],
        Sequence[int],
        set[str],
        bytes,
        complex,
        tuple,
        tuple[()],
        tuple[int, list[int]],
        dict,
        dict[int, str],
        dict[str, "Literal['a']"],
        Number,
        Kilograms,
        Colour,
        Final[int],
        InitVar[int],
        type,
        Annotated[int, Shape(("samples",), torch.int64)],
        Annotated[tuple[Tensor, ...], Shape(("samples",), torch.int64)],
        Annotated[list[int], "seconds"],
    ],
    ids=str,
)
def test_a_class_with_a_field_that_could_not_be_sent_cannot_be_defined(hint: Any) -> None:
    with pytest.raises(TypeError, match=r"Defined\.value: .* cannot be a field of a message; use int, float") as caught:
        defined(hint)
    assert str(caught.value).endswith(ALLOWED)


def test_the_refusal_names_the_type_as_it_is_written() -> None:
    with pytest.raises(TypeError, match=r"Defined\.value: Literal\['a'\] cannot be a field"):
        defined(Literal["a"])
    with pytest.raises(TypeError, match=r"Defined\.value: int \| str cannot be a field"):
        defined(int | str)
    with pytest.raises(TypeError, match=r"Defined\.value: list cannot be a field"):
        defined(list)


def test_a_type_that_is_not_known_where_the_class_is_defined_is_refused() -> None:
    with pytest.raises(TypeError, match="Defined: name 'Nobody' is not defined; define a type before the message"):
        defined("Nobody")


def test_a_message_may_hold_its_own_kind_and_inherit_fields() -> None:
    tree = Branch("root", (Tree("leaf"), Branch("twig", length=2.0)), best=Tree("leaf"), length=1.5)
    assert decode(encode(tree), Branch) == tree
    assert list(message_fields(Branch)) == ["name", "children", "best", "length"]


def test_a_class_inside_a_function_knows_the_names_of_the_function() -> None:
    @dataclass(frozen=True)
    class Inner(Message):
        number: int

    def deeper() -> type[Message]:
        @dataclass(frozen=True, slots=True)  # makes the class a second time
        class Outer(Message):
            inner: Inner
            several: tuple[Outer, ...] = ()

        return Outer

    kind: Any = deeper()
    sent = kind(Inner(1), (kind(Inner(2)),))
    assert decode(encode(sent), kind) == sent


def test_fields_of_a_base_that_is_no_message_are_checked_too() -> None:
    @dataclass(frozen=True)
    class Timed:
        seconds: float

    @dataclass(frozen=True)
    class TimedMessage(Timed, Message):
        client: int

    assert decode(encode(TimedMessage(1.5, 2)), TimedMessage) == TimedMessage(1.5, 2)

    @dataclass(frozen=True)
    class Listed:
        items: list[int]

    with pytest.raises(TypeError, match=r"Listed\.items: list\[int\] cannot be a field"):
        type("ListedMessage", (Listed, Message), {"__module__": __name__})


def test_a_class_that_lacks_its_decorator_is_named_when_it_is_sent() -> None:
    class Forgotten(Tree):
        more: int = 1

    with pytest.raises(CodecError, match=r"Forgotten is not a dataclass; put @dataclass\(frozen=True\) above it"):
        encode(Forgotten("x"))


def test_messages_of_other_packages_are_named_after_their_package() -> None:
    package = __name__.partition(".")[0]
    assert wire_name(Tree) == f"{package}:Tree"
    assert f'"message":"{package}:Tree"'.encode() in encode(Tree("x"))


def test_two_packages_may_have_messages_of_one_name() -> None:
    namespace: dict[str, Any] = {"__name__": "elsewhere.methods"}
    module = types.ModuleType("elsewhere.methods")
    sys.modules[module.__name__] = module
    try:
        code = "from dataclasses import dataclass\nfrom fcil.core.messages import Message\n"
        code += "@dataclass(frozen=True)\nclass Bias(Message):\n    shift: float\n"
        exec(code, namespace)
        theirs = namespace["Bias"](0.5)
        assert decode(encode(theirs), type(theirs)) == theirs
        assert decode(encode(bic.Bias(1.0, 2.0)), bic.Bias) == bic.Bias(1.0, 2.0)
        assert b'"message":"Bias"' in encode(bic.Bias(1.0, 2.0))
        with pytest.raises(CodecError, match="a elsewhere:Bias message where a Bias was expected"):
            decode(encode(theirs), bic.Bias)
    finally:
        del sys.modules[module.__name__], Message.registry["elsewhere:Bias"]


def test_every_message_of_fcil_has_its_bare_name() -> None:
    assert methods()
    own = {name: kind for name, kind in Message.registry.items() if kind.__module__.startswith("fcil.")}
    assert {"Order", "Broadcast", "Teachers", "Bias"} <= own.keys()
    assert all(name == kind.__name__ for name, kind in own.items())
    assert all(set(message_fields(kind)) == {entry.name for entry in fields(kind)} for kind in own.values())  # type: ignore[arg-type]


def test_a_module_that_is_started_by_name_is_known_by_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    started = tmp_path / "package" / "started.py"
    started.parent.mkdir()
    started.write_text(
        "from dataclasses import dataclass\nfrom fcil.core.messages import Message, encode\n"
        "@dataclass(frozen=True)\nclass Hello(Message):\n    number: int\nprint(encode(Hello(1)))\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    runpy.run_module("package.started", run_name="__main__", alter_sys=True)  # python -m package.started
    assert '"message":"package:Hello"' in capsys.readouterr().out
    runpy.run_path(str(started), run_name="__main__")  # python package/started.py
    assert '"message":"__main__:Hello"' in capsys.readouterr().out
    del sys.modules["package"], Message.registry["package:Hello"], Message.registry["__main__:Hello"]
