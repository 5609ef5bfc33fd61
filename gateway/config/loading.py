"""Reads ``sluice.toml`` and the environment into a ``Config``."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import msgspec

from engine import hub
from engine.errors import ConfigError as EngineConfigError
from engine.field_hints import explain, hint
from gateway.config.sections import Config
from gateway.errors import ConfigError

ENV_PREFIX = "SLUICE_"
_ALL = "; remove it, and `sluice config show` prints all that there are"
SECTIONS: dict[str, type[msgspec.Struct]] = {
    field.name: field.type
    for field in msgspec.structs.fields(Config)
    if isinstance(field.type, type) and issubclass(field.type, msgspec.Struct)
}
_OF_ENTRIES = ("engine", "replicas")
"""Keys of an item of ``[[models]]`` beside those of ``[models]``: what is laid over ``[engine]``,
and what takes the place of ``fleet.replicas``."""


def load(
    path: Path | None,
    *,
    env: Mapping[str, str] = os.environ,
    defaults: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
) -> Config:
    """Read ``path``, if any. Paths inside it are relative to its folder.

    defaults: sections of keys, for what neither the file nor the environment sets.

    Raises:
        ConfigError: one line naming the file or variable, the key and the mend.
    """
    where = "the environment" if path is None else str(path)
    document = {} if path is None else _read(path)
    _refuse_unknown(document, where=where)
    variables = _overlay(document, env)
    for section, table in defaults.items():
        document[section] = {**table, **document.get(section, {})}
    folder = Path() if path is None else path.parent
    return _resolve(parse(document, where=where, variables=variables), folder)


def has_several(path: Path | None) -> bool:
    """Whether a settings file has ``[[models]]``. Raises ``ConfigError`` if it cannot be read."""
    return path is not None and isinstance(_read(path).get("models"), list)


def _read(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(
            f"{path}: no such file; name another with --config FILE (`sluice demo` needs none)"
        ) from None
    except (OSError, UnicodeDecodeError) as exc:
        raise ConfigError(f"{path}: cannot be read: {exc}") from None
    except tomllib.TOMLDecodeError as exc:
        raise ConfigError(f"{path}: not valid TOML: {exc}") from None


def parse(
    document: Mapping[str, Any],
    *,
    where: str = "config",
    variables: Mapping[str, str] = MappingProxyType({}),
) -> Config:
    """Check ``document``, sections of keys; ``models`` may be a list, with an item for each model.

    Raises ``ConfigError``, which begins with ``where``, or with the variable that the key is from:
    ``variables``, by ``section.key``.
    """
    _refuse_unknown(document, where=where)
    entries = document.get("models")
    if not isinstance(entries, list):
        return _parse_one(document, where, variables)
    _refuse_vain(entries, variables)
    found = []
    for index, entry in enumerate(entries):
        replicas = {"replicas": entry["replicas"]} if "replicas" in entry else {}
        one = {
            **document,
            "engine": {**document.get("engine", {}), **entry.get("engine", {})},
            "models": {key: entry[key] for key in entry if key not in _OF_ENTRIES},
            "fleet": {**document.get("fleet", {}), **replicas},
        }
        found.append(_parse_one(one, f"{where}: models[{index}]", variables))
    names = [name for one in found for name in (one.model_name, *one.models.aliases)]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(
                f"{where}: two models are called {name!r}; set their models.served_model_name and "
                "models.aliases to names that differ"
            )
    return msgspec.structs.replace(found[0], others=tuple(found[1:]))


def _parse_one(document: Mapping[str, Any], where: str, variables: Mapping[str, str]) -> Config:
    if document.get("engine", {}).get("model", "") == "":
        raise ConfigError(f"{where}: engine.model is missing; set it to a folder or hub id")
    try:
        return msgspec.convert(document, Config)
    except msgspec.ValidationError as exc:
        fault = explain(exc, Config)
    except ConfigError as exc:
        fault = str(exc)
    except EngineConfigError as exc:
        fault = f"engine.{exc}"
    key = fault.partition(" ")[0].rstrip(":")
    raise ConfigError(f"{variables.get(key, where)}: {fault}")


def _refuse_unknown(document: Mapping[str, Any], *, where: str) -> None:
    for section, table in document.items():
        if section not in SECTIONS:
            raise ConfigError(
                f"{where}: unknown section [{section}]{hint(section, SECTIONS) or _ALL}"
            )
        if section == "models" and isinstance(table, list) and table:
            for index, entry in enumerate(table):
                _refuse_unknown_of_entry(entry, f"models[{index}]", where)
        elif isinstance(table, Mapping):
            _refuse_unknown_keys(table, section, section, where)
        else:
            raise ConfigError(f"{where}: {section} must be a section, written as [{section}]")


def _refuse_unknown_of_entry(entry: object, name: str, where: str) -> None:
    if not isinstance(entry, Mapping):
        raise ConfigError(f"{where}: {name} must be a section, written as [[models]]")
    engine = entry.get("engine", {})
    if not isinstance(engine, Mapping):
        raise ConfigError(f"{where}: {name}.engine must be a section, written as [models.engine]")
    _refuse_unknown_keys(engine, "engine", f"{name}.engine", where)
    own = {key: entry[key] for key in entry if key not in _OF_ENTRIES}
    _refuse_unknown_keys(own, "models", name, where)


def _refuse_unknown_keys(table: Mapping[str, Any], section: str, name: str, where: str) -> None:
    fields = SECTIONS[section].__struct_fields__
    for key in table:
        if key not in fields:
            mend = _elsewhere(key) or hint(key, (*fields, *_OF_ENTRIES)) or _ALL
            if section == name == "models" and key in _OF_ENTRIES:
                mend = "; it is for one of several models, which are written as [[models]]"
            raise ConfigError(f"{where}: unknown key {name}.{key}{mend}")


def _refuse_vain(entries: list[Mapping[str, Any]], variables: Mapping[str, str]) -> None:
    """Refuse variables for what each model sets itself."""
    for path, variable in variables.items():
        section, _, key = path.partition(".")
        for index, entry in enumerate(entries):
            if section == "engine" and key in entry.get("engine", {}):
                own = f"models[{index}].engine.{key}"
            elif path == "fleet.replicas" and key in entry:
                own = f"models[{index}].{key}"
            else:
                continue
            raise ConfigError(f"{variable} has no effect on {own}; set that in the file")


def _elsewhere(key: str) -> str:
    """The end of an error about an unknown key: the section that has this key, if any."""
    homes = [section for section, kind in SECTIONS.items() if key in kind.__struct_fields__]
    return f"; it belongs into [{homes[0]}]" if homes else ""


def _overlay(document: dict[str, Any], env: Mapping[str, str]) -> dict[str, str]:
    """Lay the environment over ``document``. Values are written as in TOML; a word is a string.

    Returns the variables by the ``section.key`` that each has set.
    """
    used: dict[str, str] = {}
    for variable, text in env.items():
        section, _, key = variable.removeprefix(ENV_PREFIX).lower().partition("_")
        if not variable.startswith(ENV_PREFIX) or section not in SECTIONS:
            continue
        fields = SECTIONS[section].__struct_fields__
        if key not in fields:
            known = [f"{ENV_PREFIX}{section}_{field}".upper() for field in fields]
            raise ConfigError(f"unknown variable {variable}{hint(variable, known) or _ALL}")
        if isinstance(document.get(section), list):
            raise ConfigError(
                f"{variable} is for a lone model, and the file has [[models]]; set it in the file"
            )
        try:
            value = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            value = text
        document.setdefault(section, {})[key] = value
        used[f"{section}.{key}"] = variable
    return used


def _model(model: str, folder: Path) -> str:
    path = folder / model
    return model if hub.is_hub_id(model) and not path.exists() else str(path)


def _path(path: str | None, folder: Path) -> str | None:
    return None if path is None else str(folder / path)


def _resolve(config: Config, folder: Path) -> Config:
    first, *others = [_resolve_one(one, folder) for one in config.each]
    return msgspec.structs.replace(first, others=tuple(others))


def _resolve_one(config: Config, folder: Path) -> Config:
    engine, tenants = config.engine, config.tenants
    speculative = engine.speculative_config
    if speculative is not None and speculative.model is not None:
        speculative = msgspec.structs.replace(speculative, model=_model(speculative.model, folder))
    server = msgspec.structs.replace(
        config.server,
        unix_socket=_path(config.server.unix_socket, folder),
        tls_certificate=_path(config.server.tls_certificate, folder),
        tls_key=_path(config.server.tls_key, folder),
    )
    return msgspec.structs.replace(
        config,
        server=server,
        engine=msgspec.structs.replace(
            engine, model=_model(engine.model, folder), speculative_config=speculative
        ),
        oidc=msgspec.structs.replace(
            config.oidc, client_secret_file=_path(config.oidc.client_secret_file, folder)
        ),
        models=msgspec.structs.replace(
            config.models,
            chat_template=_path(config.models.chat_template, folder),
            adapters_dir=_path(config.models.adapters_dir, folder),
        ),
        tenants=msgspec.structs.replace(
            tenants,
            secrets_file=str(folder / tenants.secrets_file),
            journal_dir=_path(tenants.journal_dir, folder),
        ),
    )
