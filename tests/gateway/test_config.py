from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gateway import config
from gateway.commands.settings import show
from gateway.config import Config, ServedEngineConfig, ServerConfig
from gateway.errors import ConfigError

MINIMAL = '[engine]\nmodel = "models/demo"\n'


def load(
    tmp_path: Path,
    text: str,
    env: dict[str, str] | None = None,
    defaults: dict[str, dict[str, Any]] | None = None,
) -> Config:
    path = tmp_path / "sluice.toml"
    path.write_text(text)
    return config.load(path, env=env or {}, defaults=defaults or {})


def model_in(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "config.json").write_text("{}")
    return folder


def test_defaults_fill_what_the_file_leaves_out(tmp_path: Path) -> None:
    folder = model_in(tmp_path / "models/demo")
    loaded = load(tmp_path, MINIMAL)
    assert loaded.server == ServerConfig()
    assert loaded.engine.model_dir == folder
    assert loaded.tenants.secrets_file == str(tmp_path / ".sluice/secrets.json")
    assert loaded.model_name == "demo"


def test_values_are_taken(tmp_path: Path) -> None:
    loaded = load(
        tmp_path,
        '[server]\nport = 9000\nallowed_origins = ["https://a.example"]\n'
        '[engine]\nmodel = "/m"\nmax_num_seqs = 3\n'
        '[models]\nserved_model_name = "mine"\n',
    )
    assert loaded.server.port == 9000
    assert loaded.server.allowed_origins == ("https://a.example",)
    assert loaded.engine == ServedEngineConfig(model="/m", max_num_seqs=3)
    assert loaded.model_name == "mine"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (MINIMAL + "[server]\nprot = 1\n", "unknown key server.prot; did you mean port?"),
        (
            MINIMAL + "[server]\nxyzzy = 1\n",
            "unknown key server.xyzzy; remove it, and `sluice config",
        ),
        (MINIMAL + "[sever]\n", "unknown section [sever]; did you mean server?"),
        (MINIMAL + "[zebra]\n", "known are engine, fleet, images, mcp, models, oidc, server"),
        (
            MINIMAL + "served_model_name = 'm'\n",
            "engine.served_model_name; it belongs into [models]",
        ),
        (MINIMAL + "max_num_seq = 1\n", "engine.max_num_seq; did you mean max_num_seqs?"),
        ("server = 3\n" + MINIMAL, "server must be a section"),
        ("[server]\nport = 1\n", "engine.model is missing"),
        ('[engine]\nmodel = ""\n', "engine.model is missing"),
        (
            MINIMAL + '[models]\nserved_model_name = ""\n',
            "models.served_model_name: Expected `str` of length >= 1",
        ),
        (
            MINIMAL + '[server]\nallowed_origins = ["app.example"]\n',
            "server.allowed_origins: 'app.example' is no origin; write it as browsers send it",
        ),
        (
            MINIMAL + '[server]\nallowed_origins = ["https://a.example", "https://b.example/"]\n',
            "server.allowed_origins: 'https://b.example/' is no origin",
        ),
        *(
            (
                MINIMAL + f'[server]\nallowed_origins = ["{origin}"]\n',
                f"server.allowed_origins: '{origin}' is no origin",
            )
            for origin in (
                "https://*.example.com",
                "https://App.example.com",
                "https://app.example.com:443",
                "http://app.example.com:80",
                "https://b\u00fccher.example",
                "null",
            )
        ),
        *(
            (
                MINIMAL + f'[server]\n{name} = ["10.0.0.7/8"]\n',
                f"server.{name}: 10.0.0.7/8 has host bits set",
            )
            for name in ("outbound_networks", "trusted_proxies")
        ),
        (MINIMAL + '[server]\nport = "x"\n', "server.port: Expected `int`, got `str`"),
        (MINIMAL + "[server]\nport = 70000\n", "server.port: Expected `int` <= 65535"),
        (MINIMAL + "[server]\nheartbeat_s = 0\n", "server.heartbeat_s: Expected `float` > 0"),
        (
            MINIMAL + '[server]\nlog_format = "xml"\n',
            "log_format: Invalid enum value 'xml'; use one of json",
        ),
        (MINIMAL + "max_num_seqs = 0\n", "engine.max_num_seqs must be at least 1"),
        ("[engine\n", "not valid TOML"),
    ],
)
def test_a_wrong_setting_is_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, text)
    assert message in str(caught.value)
    assert str(caught.value).startswith(str(tmp_path / "sluice.toml"))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "origin",
    [
        "*",
        "http://localhost:8080",
        "https://a.example:8443",
        "http://[::1]:443",
        "capacitor://localhost",
        "chrome-extension://abcdefghijklmnop",
    ],
)
def test_origins_of_pages_and_of_apps_are_taken(tmp_path: Path, origin: str) -> None:
    text = MINIMAL + f'[server]\nallowed_origins = ["{origin}"]\n'
    assert load(tmp_path, text).server.allowed_origins == (origin,)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file; name another with --config FILE"):
        config.load(tmp_path / "none.toml", env={})
    with pytest.raises(ConfigError, match="cannot be read"):
        config.load(tmp_path, env={})


def test_the_environment_lies_over_the_file(tmp_path: Path) -> None:
    env = {
        "SLUICE_SERVER_PORT": "9001",
        "SLUICE_SERVER_ALLOWED_ORIGINS": '["https://b.example"]',
        "SLUICE_ENGINE_ENABLE_PREFIX_CACHING": "false",
        "SLUICE_TENANTS_DSN": "postgresql://u@h/d",
        "SLUICE_API_KEY": "not a setting",
        "HOME": "/",
    }
    loaded = load(tmp_path, MINIMAL + "[server]\nport = 1\n", env)
    assert loaded.server.port == 9001
    assert loaded.server.allowed_origins == ("https://b.example",)
    assert loaded.engine.enable_prefix_caching is False
    assert loaded.tenants.dsn == "postgresql://u@h/d"


def test_defaults_lie_below_the_file_and_the_environment(tmp_path: Path) -> None:
    defaults = {"engine": {"model": "m", "seed": 1}, "server": {"port": 2, "host": "h"}}
    loaded = load(tmp_path, "[server]\nport = 3\n", {"SLUICE_ENGINE_SEED": "4"}, defaults)
    assert (loaded.engine.seed, loaded.server.port, loaded.server.host) == (4, 3, "h")


def test_there_need_not_be_a_file() -> None:
    loaded = config.load(None, env={"SLUICE_ENGINE_MODEL": "./m", "SLUICE_SERVER_PORT": "1"})
    assert (loaded.engine.model, loaded.server.port) == ("m", 1)
    with pytest.raises(ConfigError, match=r"^the environment: engine\.model is missing"):
        config.load(None, env={})


@pytest.mark.parametrize(
    ("env", "message"),
    [
        ({"SLUICE_SERVER_PROT": "1"}, "SLUICE_SERVER_PROT; did you mean SLUICE_SERVER_PORT?"),
        ({"SLUICE_SERVER_PORT": "many"}, "SLUICE_SERVER_PORT: server.port: Expected `int`, got"),
        ({"SLUICE_ENGINE_BLOCK_SIZE": "0"}, "SLUICE_ENGINE_BLOCK_SIZE: engine.block_size must be"),
        ({"SLUICE_SERVER_HOST": "h", "SLUICE_MODELS_PRICE_CACHED": "1"}, "PRICE_CACHED: models."),
    ],
)
def test_a_wrong_variable_is_named(tmp_path: Path, env: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        load(tmp_path, MINIMAL, env)
    assert message in str(caught.value)


def test_every_setting_is_documented() -> None:
    rows = list(config.settings())
    assert {row.section for row in rows} == {
        *("server", "engine", "models", "tenants", "tracing", "fleet", "oidc", "mcp"),
        "images",
    }
    keys = {(row.section, row.key) for row in rows}
    assert keys >= {("engine", key) for key in ServedEngineConfig.__struct_fields__}
    for row in rows:
        if row.section != "engine":
            assert row.description, f"{row.section}.{row.key} has no docstring"
        assert row.type


def test_a_row_says_what_the_setting_is() -> None:
    (port,) = [row for row in config.settings() if row.key == "port"]
    assert (port.section, port.default, port.env) == ("server", "8000", "SLUICE_SERVER_PORT")
    assert port.description == "Port to listen on; 0 picks a free one."
    (model,) = [row for row in config.settings() if row.key == "model"]
    assert model.default == ""


def test_the_gateway_serves_tenants_in_fair_shares_unless_told_otherwise(tmp_path: Path) -> None:
    assert load(tmp_path, MINIMAL).engine.policy == "fair_share"
    assert load(tmp_path, MINIMAL + 'policy = "fcfs"\n').engine.policy == "fcfs"


def test_the_journal_lies_beside_the_secrets_unless_told_otherwise(tmp_path: Path) -> None:
    assert load(tmp_path, MINIMAL).tenants.journal_folder == tmp_path / ".sluice/journal"
    named = load(tmp_path, MINIMAL + '[tenants]\njournal_dir = "kept"\n')
    assert named.tenants.journal_folder == tmp_path / "kept"


def test_prices(tmp_path: Path) -> None:
    prices = "[models]\nprice_prompt = 2\nprice_cached = {}\nprice_completion = 3\n"
    loaded = load(tmp_path, MINIMAL + prices.format(1))
    price = loaded.models.price
    assert (price.prompt, price.cached, price.completion) == (2, 1, 3)
    with pytest.raises(ConfigError, match=r"models\.price_cached"):
        load(tmp_path, MINIMAL + prices.format(5))


def test_a_draft_network_is_found_from_the_folder_of_the_file(tmp_path: Path) -> None:
    table = '{ method = "eagle", model = "head", num_speculative_tokens = 3 }'
    text = MINIMAL.replace("[engine]", f"[engine]\nspeculative_config = {table}")
    speculative = load(tmp_path, text).engine.speculative_config
    assert speculative is not None
    folder = model_in(tmp_path / "head")
    assert speculative.model_dir == folder


def test_a_model_that_is_no_folder_may_be_on_the_hub(tmp_path: Path) -> None:
    loaded = load(tmp_path, '[engine]\nmodel = "Qwen/Qwen3-0.6B"\nrevision = "main"\n')
    assert loaded.engine.model == "Qwen/Qwen3-0.6B"
    assert loaded.model_name == "Qwen3-0.6B"
    folder = model_in(tmp_path / "Qwen/Qwen3-0.6B")
    assert load(tmp_path, '[engine]\nmodel = "Qwen/Qwen3-0.6B"\n').engine.model_dir == folder


@pytest.mark.parametrize(
    ("lora", "models", "message"),
    [
        ("true", "", "models.adapters_dir is missing; with engine.enable_lora"),
        ("false", 'adapters_dir = "a"', "models.adapters_dir needs engine.enable_lora = true"),
    ],
)
def test_adapters_need_both_settings(tmp_path: Path, lora: str, models: str, message: str) -> None:
    path = tmp_path / "sluice.toml"
    path.write_text(f'[engine]\nmodel = "m"\nenable_lora = {lora}\n[models]\n{models}\n')
    with pytest.raises(ConfigError, match=message) as caught:
        config.load(path, env={})
    assert str(caught.value).startswith(f"{path}: ")


def test_the_folder_of_adapters_is_relative_to_the_file(tmp_path: Path) -> None:
    path = tmp_path / "sluice.toml"
    path.write_text('engine = {model = "m", enable_lora = true}\nmodels = {adapters_dir = "a"}\n')
    assert config.load(path, env={}).models.adapters_dir == str(tmp_path / "a")


SEVERAL = """
[engine]
max_model_len = 1000
[fleet]
router = "random"
[[models]]
served_model_name = "chat"
aliases = ["usual"]
replicas = 2
[models.engine]
model = "one"
max_num_seqs = 4
[[models]]
chat_template = "own.jinja"
[models.engine]
model = "two"
max_model_len = 500
"""


def test_several_models_each_with_its_own_settings(tmp_path: Path) -> None:
    loaded = load(tmp_path, SEVERAL)
    one, two = loaded.each
    assert one.model_name == "chat"
    assert (one.fleet.replicas, two.fleet.replicas) == (2, 1)
    assert one.fleet.router == two.fleet.router == "random"
    assert (one.engine.max_model_len, two.engine.max_model_len) == (1000, 500)
    assert (one.engine.max_num_seqs, two.engine.max_num_seqs) == (4, None)
    assert two.engine.model == str(tmp_path / "two")
    assert two.models.chat_template == str(tmp_path / "own.jinja")


def test_what_is_shown_of_several_models_can_be_loaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "sluice.toml"
    path.write_text(SEVERAL)
    for changed in (False, True):
        show(path, changed=changed)
        shown = tmp_path / "shown.toml"
        shown.write_text(capsys.readouterr().out)
        assert config.load(shown, env={}) == config.load(path, env={})


@pytest.mark.parametrize(
    ("text", "env", "message"),
    [
        ("[[models]]\nreplica = 1", {}, r"unknown key models\[0\].replica; did you mean"),
        ("[[models]]\nengine = {modle = 'x'}", {}, r"unknown key models\[0\].engine.modle; did"),
        ("[[models]]\n[[models]]", {}, r"models\[0\]: engine.model is missing"),
        ("[models]\nreplicas = 2\n[engine]\nmodel = 'x'", {}, r"written as \[\[models\]\]"),
        ("models = []", {}, "models must be a section"),
        ("models = [1]", {}, r"models\[0\] must be a section"),
        ("[[models]]\nengine = 1", {}, r"models\[0\].engine must be a section"),
        (
            "[engine]\nmodel = 'x'\n[[models]]\naliases = ['y']\n[[models]]\n"
            "served_model_name = 'y'",
            {},
            "two models are called 'y'",
        ),
        (SEVERAL, {"SLUICE_ENGINE_MODEL": "x"}, r"ENGINE_MODEL has no effect on models\[0\]"),
        (SEVERAL, {"SLUICE_FLEET_REPLICAS": "3"}, r"no effect on models\[0\].replicas"),
        (SEVERAL, {"SLUICE_MODELS_ALIASES": "[]"}, r"the file has \[\[models\]\]"),
    ],
)
def test_a_wrong_list_of_models_is_named(
    tmp_path: Path, text: str, env: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        load(tmp_path, text, env=env)
