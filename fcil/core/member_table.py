"""Settings tables that choose a member of a registry and hold that member's own table, like `[federation.krum]`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Self

from pydantic import (
    BaseModel,
    ModelWrapValidatorHandler,
    PrivateAttr,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
    model_validator,
)
from pydantic_core import InitErrorDetails, PydanticCustomError

from fcil.core.registry import Registry
from fcil.core.settings_table import NoSettings, SettingsTable


class MemberTable(SettingsTable):
    """A table with a key that names a member, and inside it the own table of that member alone.

    The own table of another member is refused, since nothing would read it.
    """

    members: ClassVar[Registry[Any]]
    chooser: ClassVar[str]  # the key that names the member
    within: ClassVar[str]  # the name of this table

    _own: SettingsTable = PrivateAttr(default_factory=NoSettings)

    @property
    def own(self) -> SettingsTable:
        """Return the own table of the chosen member."""
        return self._own

    @classmethod
    def table(cls, key: str) -> type[BaseModel] | None:
        found = super().table(key)
        return found if found or key in cls.model_fields or key not in cls.members else cls.members[key].settings

    @classmethod
    def keys(cls) -> list[str]:
        return [*super().keys(), *(name for name, member in cls.members.items() if member.settings.model_fields)]

    @model_validator(mode="wrap")
    @classmethod
    def _with_own_table(cls, given: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        if not isinstance(given, Mapping):
            return handler(given)
        tables = {key: given[key] for key in given if key not in cls.model_fields and key in cls.members}
        chosen = given.get(cls.chooser, cls.model_fields[cls.chooser].default)
        problems: list[InitErrorDetails] = []
        own: SettingsTable | None = None
        for name, table in tables.items():
            if name != chosen:
                problems.append(problem(name, table, f"absent, since {cls.within}.{cls.chooser} is {chosen}"))
            elif not isinstance(table, Mapping):
                problems.append(problem(name, table, f"a table of the settings of {name}"))
        if isinstance(chosen, str) and chosen in cls.members and not problems:
            own, problems = parsed_table(cls.members[chosen].settings, tables.get(chosen, {}), chosen)
        made: Self | None = None
        try:
            made = handler({key: value for key, value in given.items() if key not in tables})
        except ValidationError as error:
            problems = [*details(error), *problems]
        if problems or made is None:
            raise ValidationError.from_exception_data(cls.__name__, problems)
        made._own = own or NoSettings()
        return made

    @model_serializer(mode="wrap")
    def _with_own(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        plain: dict[str, Any] = handler(self)
        own = self._own.model_dump(mode="json")
        return {**plain, getattr(self, self.chooser): own} if own else plain


def parsed_table(
    kind: type[SettingsTable], table: Mapping[str, Any], name: str
) -> tuple[SettingsTable | None, list[InitErrorDetails]]:
    """Return a member's own table; errors in it stand under the member's name."""
    try:
        return kind(**table), []
    except ValidationError as error:
        return None, details(error, name)


def details(error: ValidationError, *place: str) -> list[InitErrorDetails]:
    """Return the problems of an error for another one, under this place."""
    return [
        InitErrorDetails(
            type=detail["type"], loc=(*place, *detail["loc"]), input=detail["input"], ctx=detail.get("ctx", {})
        )
        for detail in error.errors()
    ]


def problem(name: str, found: Any, right: str) -> InitErrorDetails:
    """Return a problem for a ValidationError: what was found under a name, and what would be right."""
    return InitErrorDetails(
        type=PydanticCustomError("own_table", "{right}", {"right": right}), loc=(name,), input=found
    )
