"""The configuration of a run: TOML or a preset, changed by `key.path=value`, checked into one frozen object."""

from __future__ import annotations

import copy
import difflib
import json
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, Final, Literal, get_args, get_origin

from pydantic import Field, ValidationError, field_validator

from fcil.core.errors import ConfigError
from fcil.core.member_table import MemberTable
from fcil.core.registry import Registered, Registry
from fcil.core.settings_table import SettingsTable, explain, shown
from fcil.data.datasets import DataConfig
from fcil.data.scenario.scenario import ScenarioConfig
from fcil.experiment.logger import LOGGERS, LogConfig
from fcil.experiment.presets import read_document
from fcil.experiment.private_settings import check_privacy
from fcil.federation.attacks.base import AttackConfig
from fcil.federation.engines.base import ENGINES
from fcil.federation.server import FederationConfig
from fcil.methods import MethodConfig, methods
from fcil.methods.privacy import PrivacyConfig
from fcil.models.config import ModelConfig
from fcil.models.trainer import TrainConfig
from fcil.models.weights import with_digest

FEW = 2  # methods that share a setting which is named as theirs
OPEN: Final = "open"  # rounds of a federation without an end
FIXED = ("image_size", "channels")  # of [deployment], which affect results
OWN_METHOD_KEYS = ("name", "edition")


class RunConfig(MemberTable):
    """The machine's part: it may change the speed of a run, not its meaning."""

    members: ClassVar[Registry[Any]] = ENGINES
    chooser: ClassVar[str] = "engine"
    within: ClassVar[str] = "run"

    engine: str = Field(
        "auto", description="where clients run, see `fcil list engines`; auto: processes if that is faster"
    )
    workers: int = Field(0, ge=0, le=10_000, description="workers of the engine; 0: one per core, or one per GPU")
    address: str | None = Field(None, description="address of a Ray cluster, HOST:PORT; a local one if absent")
    device: Literal["cpu", "cuda", "mps"] = Field("cpu", description="where networks run")
    threads: int = Field(
        1, ge=1, description="threads per process; another number changes the last bits of the results"
    )
    evaluate: Literal["task", "round"] = Field(
        "task", description="when accuracy is measured: after each task or each round"
    )
    prototypes: int = Field(
        4,
        ge=0,
        le=64,
        description="prototypes per task that a simulation keeps for its report: original, perturbed and rebuilt",
    )

    @field_validator("engine")
    @classmethod
    def _is_known(cls, name: str) -> str:
        if name not in ("auto", *ENGINES):
            raise ValueError(ENGINES.one_of(name, "auto"))
        return name


ENGINES.reserve({*RunConfig.model_fields, "auto"})


class DeploymentConfig(SettingsTable):
    """A federation between real sites (`fcil federation serve`); a simulation does not look at it."""

    rounds: Annotated[int, Field(ge=1, le=1_000_000)] | Literal["open"] = Field(
        100, description="rounds of `fcil federation serve`; open: whenever there is something to learn, without an end"
    )
    burst: int = Field(10, ge=1, description="open rounds: rounds that follow news")
    new_images: int = Field(1, ge=1, description="open rounds: new images at one site that are news")
    every: float = Field(0.0, ge=0, description="open rounds: seconds without a round that are news; 0: never")
    min_sites: int = Field(2, ge=1, description="sites that have to be connected before a round begins")
    deadline: float = Field(600.0, gt=0, description="seconds before late clients are skipped")
    patience: float = Field(
        3600.0, ge=0, description="seconds to wait for enough sites, and for the proxy, before the federation stops"
    )
    attempts: int = Field(3, ge=1, description="times that a round is tried before the federation stops")
    evaluate_every: int = Field(
        5, ge=0, description="rounds between two evaluations of the model on the sites' hold-out images; 0: at the end"
    )
    release_every: int = Field(
        0,
        ge=0,
        description="rounds between two releases of the model; 0: only at the ends of blocks, or on demand",
    )
    release_margin: float = Field(
        10.0,
        ge=0,
        le=100,
        description="a release whose accuracy, on the classes of the current one, is lower by more points is kept back",
    )
    image_size: int = Field(32, ge=4, le=4096, description="pixels per side that sites bring their images to")
    channels: Literal[1, 3] = Field(3, description="channels of the images: 3, or 1 for grey ones")
    columns: str | None = Field(
        None, description="sites have tables: the file of agreed columns, see `fcil federation columns`; absent: images"
    )


class Config(SettingsTable):
    """One run in full; `method` holds the name, the edition and every hyper-parameter."""

    description: str = Field("", description="one line about the experiment")
    seed: int = Field(2021, ge=0, description="seed of everything random")
    data: DataConfig = Field(default_factory=DataConfig)
    scenario: ScenarioConfig = ScenarioConfig()
    model: ModelConfig = Field(default_factory=ModelConfig)
    train: TrainConfig = TrainConfig()
    federation: FederationConfig = Field(default_factory=FederationConfig)
    attack: AttackConfig = Field(default_factory=AttackConfig)
    privacy: PrivacyConfig = PrivacyConfig()
    run: RunConfig = Field(default_factory=RunConfig)
    deployment: DeploymentConfig = DeploymentConfig()
    log: LogConfig = Field(default_factory=LogConfig)
    method_name: str = "glfc"
    method_edition: str = "fcil"
    method: MethodConfig

    def document(self) -> dict[str, Any]:
        """Return the configuration as plain JSON values, in the shape of its TOML file."""
        plain = self.model_dump(mode="json", exclude={"method_name", "method_edition", "method"})
        for key, unset in (("log", not plain["log"]), ("attack", not self.attack.on), ("privacy", not self.privacy.on)):
            if unset:
                del plain[key]
        if self.privacy.on:
            plain["privacy"] = self.privacy.model_dump(mode="json", include=set(self.privacy.settings()))
        own = {"name": self.method_name, "edition": self.method_edition}
        plain["model"] = self.model.model_dump(mode="json", include=set(self.model.settings()))
        method = self.method.model_dump(mode="json", include=set(self.method.settings()))
        return {**plain, "method": {**own, **method}}


def apply_settings(document: Mapping[str, Any], settings: Iterable[str]) -> dict[str, Any]:
    """Return the document with each `key.path=value` put in; values are TOML, or else taken as text."""
    changed: dict[str, Any] = copy.deepcopy(dict(document))
    for setting in settings:
        path, equals, text = setting.partition("=")
        keys = path.strip().split(".")
        if not equals or not all(keys):
            raise ConfigError(f"setting {setting}: write it as key.path=value, for instance scenario.memory=500")
        table = changed
        for key in keys[:-1]:
            table = table.setdefault(key, {})
            if not isinstance(table, dict):
                raise ConfigError(f"setting {setting}: {key} is a value, not a table")
        table[keys[-1]] = _literal(text.strip())
    return changed


def of_the_machine(settings: Sequence[str]) -> list[str]:
    """Return the settings that a run may be continued with; the others are compared with those it began with."""
    return [setting for setting in settings if setting.strip().startswith("run.")]


def _literal(text: str) -> Any:
    try:
        found = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    return found["value"] if len(found) == 1 else text  # a second line is no part of a value


def parse_config(document: Mapping[str, Any]) -> Config:
    """Return the checked configuration, or raise a ConfigError that names every key that is not right.

    Hyper-parameters stand in `[method]`, for whichever method it names, or in `[method.NAME]`, for that method alone.
    """
    body = {key: value for key, value in document.items() if key != "method"}
    given = document.get("method", {})
    if not isinstance(given, Mapping):
        raise ConfigError(f"method: found {shown(given)}, should be a table with a name")
    name, edition = (_text(given, key, default) for key, default in (("name", "glfc"), ("edition", "fcil")))
    if name not in methods():
        raise ConfigError(f"method.name: {_unknown(name, methods())}")
    if edition not in methods()[name].config.editions:
        raise ConfigError(f"method.edition: {_unknown(edition, methods()[name].config.editions)}")
    inner = sorted(body.keys() & {"method_name", "method_edition"})
    if inner:
        raise ConfigError(f"{inner[0]}: unknown key; did you mean {inner[0].replace('_', '.')}?")
    problems: list[str] = []
    tables = {key: table for key, table in given.items() if key in methods() and isinstance(table, Mapping)}
    for key, table in list(tables.items()):  # a slip in a table for another method is a slip all the same
        _, slips = _method_config(key, "fcil", table, f"method.{key}.")
        problems += slips
        if slips:
            tables[key] = {}  # what was said once is not said again of the method's settings as a whole
    direct = {key: value for key, value in given.items() if key not in (*OWN_METHOD_KEYS, *tables)}
    for key in (direct.keys() & methods().keys()) - methods()[name].config.model_fields.keys():
        problems.append(f"method.{key}: found {shown(direct.pop(key))}, should be a table of the settings of {key}")
    general = tables.get(methods()[name].variant_of or name, {})
    hyper, slips = _method_config(name, edition, {**general, **tables.get(name, {}), **direct}, "method.")
    problems += slips
    try:
        config = Config(**body, method_name=name, method_edition=edition, method=hyper or MethodConfig())
        config = config.model_copy(update={"model": config.method.network(config.model)})
    except ValidationError as error:
        problems += explain(error, Config, "")
    except ValueError as error:
        problems.append(f"{error} for method.name {name}")
    if problems:
        raise ConfigError("; ".join(problems))
    check_privacy(config)
    if config.federation.min_participants > config.scenario.participants:
        raise ConfigError(
            f"federation.min_participants: found {config.federation.min_participants}, should be at most the "
            f"{config.scenario.participants} of scenario.participants"
        )
    return config


def _text(table: Mapping[str, Any], key: str, default: str) -> str:
    value = table.get(key, default)
    if not isinstance(value, str):
        raise ConfigError(f"method.{key}: found {shown(value)}, should be text")
    return value


def _method_config(
    name: str, edition: str, fields: Mapping[str, Any], prefix: str
) -> tuple[MethodConfig | None, list[str]]:
    method = methods()[name]
    values, wrong = method.config.with_edition(edition, fields)
    if wrong:
        return None, [f"{prefix}{sentence}" for sentence in wrong]
    try:
        return method.config(**values), []
    except ValidationError as error:
        return None, explain(error, method.config, prefix, _owners)


def _owners(key: str) -> str | None:
    """Say which methods have a setting that is special to a few."""
    known = methods().items()
    names = [name for name, method in known if method.variant_of is None and key in method.config.settings()]
    if not 0 < len(names) <= FEW:
        return None
    return f"it is a setting of {' and '.join(names)}, so write it under [method.{names[0]}]; "


def load_config(name: str, settings: Iterable[str] = ()) -> Config:
    """Return the configuration in a preset or file, changed by the settings, with the digest of the file it names."""
    return with_weights_digest(parse_config(apply_settings(read_document(name), settings)))


def with_weights_digest(config: Config) -> Config:
    """Return the configuration with the digest of the file of its initial weights, where it names one."""
    return config.model_copy(update={"model": with_digest(config.model)})


def setting_rows() -> list[tuple[str, str, str]]:
    """Return (key, default, description) for every setting.

    A setting that methods share is listed once, with the methods it applies to; those of single methods come last.
    """
    rows = _rows(Config, "")
    rows.append(("method.name", '"glfc"', "the method, see `fcil list methods`"))
    what = (
        "whose settings the method takes: fcil's, those of GLFC's paper, of its released code (official), or of the "
        "source of a later method (released)"
    )
    rows.append(("method.edition", '"fcil"', what))
    users: dict[tuple[str, str, str], list[str]] = {}  # a setting of methods -> those that have it, just so
    for name, method in methods().items():
        if method.variant_of is None:  # a variant has the settings of the other one
            for row in _rows(method.config, "method."):
                users.setdefault(row, []).append(name)
    everyone = sorted({name for names in users.values() for name in names})
    for (key, default, what), names in sorted(users.items(), key=lambda item: (-len(item[1]), item[1])):
        rows.append((key, default, f"{_whose(names, everyone)}{what}"))
    return rows


def _whose(names: list[str], everyone: list[str]) -> str:
    """Return the beginning of a line on a setting that these methods have."""
    others = [name for name in everyone if name not in names]
    if not others:
        return ""
    return f"all but {', '.join(others)}: " if len(others) < len(names) else f"{', '.join(names)}: "


def _rows(model: type[SettingsTable], prefix: str) -> list[tuple[str, str, str]]:
    rows = []
    for key in model.settings():
        if key in ("method", "method_name", "method_edition"):
            continue
        field = model.model_fields[key]
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, SettingsTable):
            rows += _rows(kind, f"{prefix}{key}.")
            members = LOGGERS if kind is LogConfig else kind.members if issubclass(kind, MemberTable) else {}
            rows += _member_rows(members, f"{prefix}{key}.")
        else:
            default = json.dumps(model.model_construct().model_dump(mode="json").get(key))
            choices = f" ({', '.join(map(str, get_args(kind)))})" if get_origin(kind) is Literal else ""
            what = f"{field.description or ''}{choices}"
            rows.append((f"{prefix}{key}", "absent" if default == "null" else default, what))
    return rows


def _member_rows(members: Mapping[str, Registered], prefix: str) -> list[tuple[str, str, str]]:
    """Return the settings of all members that have a table of their own."""
    return [
        (key, default, f"{name}: {what}")
        for name, member in members.items()
        for key, default, what in _rows(member.settings, f"{prefix}{name}.")
    ]


def differing_keys(ours: Mapping[str, Any], theirs: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Return the dotted keys whose values differ, with both values."""
    found = []
    for key in sorted(ours.keys() | theirs.keys()):
        left, right = ours.get(key), theirs.get(key)
        if isinstance(left, Mapping) and isinstance(right, Mapping):
            found += differing_keys(left, right, f"{prefix}{key}.")
        elif left != right:
            found.append(f"{prefix}{key} ({shown(left)} there, {shown(right)} here)")
    return found


def differing_settings(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> list[str]:
    """Return the dotted keys that make two documents different runs, with both values.

    The name of a run, its machine and the paths of its data and initial weights do not matter. A setting
    that came after a document was written has its default there, which is the value the run had.
    """
    return differing_keys(_essence(_completed(ours)), _essence(_completed(theirs)))


def _completed(document: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the document with all settings there are; one that cannot be read stays as it is."""
    try:
        return parse_config(document).document()
    except ConfigError:
        return document


def _essence(document: Mapping[str, Any]) -> dict[str, Any]:
    essence = {key: value for key, value in document.items() if key not in ("description", "run", "log")}
    if isinstance(essence.get("deployment"), Mapping):
        essence["deployment"] = {key: essence["deployment"].get(key) for key in FIXED}
    if isinstance(essence.get("data"), Mapping):
        essence["data"] = {key: value for key, value in essence["data"].items() if key != "path"}
    if isinstance(essence.get("model"), Mapping):
        essence["model"] = {key: value for key, value in essence["model"].items() if key != "weights"}
    return essence


def _unknown(name: str, options: Iterable[str]) -> str:
    known = sorted(options)
    hint = difflib.get_close_matches(name, known, 1)
    also = f"; did you mean {hint[0]}?" if hint else ""
    return f"{name!r} is unknown; there are {', '.join(known)}{also}"
