"""Settings: which source counts, and what is said about a value that is wrong."""

from pathlib import Path
from typing import Any

import pytest

from sulina.config import Limits, Settings, environment_name, is_loopback, load
from sulina.errors import InvalidSettings


@pytest.fixture(autouse=True)
def in_an_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def loaded(flags: dict[str, Any] | None = None, environment: dict[str, str] | None = None, **more: Any) -> Settings:
    return load(flags or {}, environment=environment or {}, **more)


def test_defaults_are_a_node_on_loopback() -> None:
    assert loaded() == Settings(
        data="./sulina-data", http_host="127.0.0.1", http_port=8080, broker_id="local", limits=Limits()
    )


def test_a_flag_counts_more_than_the_environment_and_that_more_than_the_file() -> None:
    Path("sulina.toml").write_text(
        'data = "file"\nbroker_id = "file"\nhttp = "127.0.0.1:1"\n[limits]\ntopics_max = 7\n'
    )
    environment = {"SULINA_DATA": "environment", "SULINA_BROKER_ID": "environment"}
    settings = loaded({"data": "flag", "http": None}, environment)
    assert (settings.data, settings.broker_id, settings.http_port) == ("flag", "environment", 1)
    assert settings.limits == Limits(topics_max=7)


def test_every_setting_can_be_given_by_every_source() -> None:
    given = {
        "data": "d", "http": "[::1]:9", "broker_id": "b", "insecure": True, "log_format": "json",
        "log_level": "error", "otlp_endpoint": "http://127.0.0.1:4318",
    }  # fmt: skip
    limits = {f"{name}": number for number, name in enumerate(Limits.__dataclass_fields__, start=1)}
    expected = Settings(
        data="d", http_host="::1", http_port=9, broker_id="b", insecure=True, log_format="json", log_level="error",
        otlp_endpoint="http://127.0.0.1:4318", limits=Limits(**limits),
    )  # fmt: skip
    in_environment = {environment_name(name): str(value).lower() for name, value in given.items()}
    in_environment |= {environment_name(f"limits.{name}"): str(value) for name, value in limits.items()}
    assert loaded({}, in_environment) == expected
    assert loaded(given | {f"limits.{name}": value for name, value in limits.items()}) == expected
    lines = [f"{name} = {str(value).lower() if value is True else repr(value)}" for name, value in given.items()]
    lines += ["[limits]", *(f"{name} = {value}" for name, value in limits.items())]
    Path("other.toml").write_text("\n".join(lines))
    assert loaded(file="other.toml") == expected
    assert loaded({}, {"SULINA_CONFIG": "other.toml"}) == expected


def test_the_usual_variable_turns_traces_on_and_our_own_counts_more() -> None:
    usual = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}
    assert loaded({}, usual).otlp_endpoint == "http://collector:4318"
    assert loaded({}, usual | {"SULINA_OTLP_ENDPOINT": "http://b:1"}).otlp_endpoint == "http://b:1"
    assert loaded({}, {"OTEL_EXPORTER_OTLP_ENDPOINT": ""}).otlp_endpoint is None


@pytest.mark.parametrize(
    ("flags", "environment", "toml", "says"),
    [
        ({"http": "8080x"}, {}, "", ["--http", "HOST:PORT", "'8080x'"]),
        ({"http": "127.0.0.1:70000"}, {}, "", ["--http", "70000"]),
        ({"http": "::1:80"}, {}, "", ["--http"]),
        ({}, {"SULINA_HTTP": "http://127.0.0.1:80"}, "", ["SULINA_HTTP"]),
        ({}, {"SULINA_INSECURE": "maybe"}, "", ["SULINA_INSECURE", "true or false"]),
        ({}, {"SULINA_LOG_LEVEL": "loud"}, "", ["SULINA_LOG_LEVEL", "debug or info or warning or error"]),
        ({}, {"SULINA_LIMITS_TOPICS_MAX": "-1"}, "", ["SULINA_LIMITS_TOPICS_MAX", "above 0"]),
        ({"broker_id": "a/b"}, {}, "", ["--broker-id", "a/b"]),
        ({"data": " "}, {}, "", ["--data"]),
        ({}, {"SULINA_OTLP_ENDPOINT": "collector"}, "", ["SULINA_OTLP_ENDPOINT", "URL"]),
        ({}, {}, "dtaa = 'x'", ["sulina.toml", "dtaa", "did you mean data?"]),
        ({}, {}, "[limits]\ntopics = 3", ["sulina.toml", "limits.topics", "limits.topics_max"]),
        ({}, {}, "limits = 3", ["sulina.toml", "limits", "[limits]"]),
        ({}, {}, "data = 3", ["sulina.toml", "data"]),
        ({}, {}, "[limits]\nbody_bytes_max = true", ["sulina.toml", "limits.body_bytes_max"]),
        ({}, {}, "data = ", ["sulina.toml", "not TOML"]),
    ],
)
def test_what_is_wrong_is_said_with_its_source_and_its_name(
    flags: dict[str, Any], environment: dict[str, str], toml: str, says: list[str]
) -> None:
    if toml:
        Path("sulina.toml").write_text(toml)
    with pytest.raises(InvalidSettings) as caught:
        loaded(flags, environment)
    assert all(word in str(caught.value) for word in says), caught.value


def test_a_file_that_was_named_must_exist() -> None:
    with pytest.raises(InvalidSettings, match=r"gone\.toml: there is no such file"):
        loaded(file="gone.toml")


def test_a_file_that_is_not_text_is_an_error_not_a_traceback() -> None:
    Path("sulina.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InvalidSettings, match="not TOML"):
        loaded()


@pytest.mark.parametrize("http", ["0.0.0.0:8080", "[::]:8080", "192.168.1.4:80", "broker.example:8080"])
def test_other_machines_are_let_in_only_when_told_so(http: str) -> None:
    with pytest.raises(InvalidSettings, match="--insecure"):
        loaded({"http": http})
    assert loaded({"http": http, "insecure": True}).insecure


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [("8081", "127.0.0.1", 8081), (":0", "127.0.0.1", 0), ("localhost:1", "localhost", 1), ("[::1]:2", "::1", 2)],
)
def test_addresses_without_a_host_are_loopback(text: str, host: str, port: int) -> None:
    settings = loaded({"http": text})
    assert (settings.http_host, settings.http_port) == (host, port)
    assert is_loopback(host)
