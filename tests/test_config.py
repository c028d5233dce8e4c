"""Settings: which source counts, and what is said about a value that is wrong."""

from pathlib import Path
from typing import Any

import pytest

from sulina.broker.options import BrokerLimits, ClusterOptions, StorageOptions
from sulina.config import DECLARED, EtcdAddress, Settings, environment_name, is_loopback, load
from sulina.core.delivery.pubsub import PubSubConfig
from sulina.errors import InvalidSettings
from sulina.listeners.http_limits import HttpLimits


@pytest.fixture(autouse=True)
def in_an_empty_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def loaded(flags: dict[str, Any] | None = None, environment: dict[str, str] | None = None, **more: Any) -> Settings:
    return load(flags or {}, environment=environment or {}, **more)


def test_defaults_are_a_node_on_loopback() -> None:
    assert loaded() == Settings(data="./sulina-data", http="127.0.0.1:8080", broker_id="local", limits=BrokerLimits())
    assert (loaded().http_host, loaded().http_port) == ("127.0.0.1", 8080)


def test_parts_have_their_own_defaults_unless_told() -> None:
    assert loaded().http_limits == HttpLimits()
    assert loaded().storage == StorageOptions()
    assert loaded().pubsub == PubSubConfig()
    assert loaded().cluster == ClusterOptions()


def test_a_flag_counts_more_than_the_environment_and_that_more_than_the_file() -> None:
    Path("sulina.toml").write_text(
        'data = "file"\nbroker_id = "file"\nhttp = "127.0.0.1:1"\n[limits]\ntopics_max = 7\n'
    )
    environment = {"SULINA_DATA": "environment", "SULINA_BROKER_ID": "environment"}
    settings = loaded({"data": "flag", "http": None}, environment)
    assert (settings.data, settings.broker_id, settings.http_port) == ("flag", "environment", 1)
    assert settings.limits == BrokerLimits(topics_max=7)


def test_every_setting_can_be_given_by_every_source() -> None:
    given = {
        "data": "d", "http": "[::1]:9", "broker_id": "b", "insecure": True, "log_format": "json",
        "log_level": "error", "otlp_endpoint": "http://127.0.0.1:4318", "metadata": "etcds://a:1,b/keys",
        "metadata_ca": "pem", "metadata_cert": "pem", "metadata_key": "pem", "metadata_user": "u",
        "metadata_password": "secret", "objects": "s3://bucket/prefix", "objects_endpoint": "http://127.0.0.1:9000",
        "advertise": "http://b1.example:8080", "peer_host": "::1", "peer_port": 9090, "peer_advertise": "[::1]:9090",
    }  # fmt: skip
    storage: dict[str, Any] = {"compress_checkpoints": True, "retention_interval_seconds": 7.5}
    pubsub = {"subscriber_timeout_seconds": 2.5, "suspended_ttl_seconds": 30.0, "metrics_event_seconds": 1.5}
    cluster = {"lease_seconds": 3.5, "rebalance_seconds": 60.0, "metadata_history_seconds": 90.0}
    names = [declared.field for declared in DECLARED.values() if declared.part in ("limits", "http_limits")]
    limits: dict[str, Any] = {name: number for number, name in enumerate(names, start=1)}
    Path("pem").write_text("a certificate")
    expected = Settings(
        **given,  # type: ignore[arg-type]
        storage=StorageOptions(**storage),
        pubsub=PubSubConfig(**pubsub),  # type: ignore[arg-type]
        cluster=ClusterOptions(**cluster),  # type: ignore[arg-type]
        http_limits=HttpLimits(**{name: limits[name] for name in HttpLimits.__dataclass_fields__ if name in limits}),
        limits=BrokerLimits(**{name: limits[name] for name in BrokerLimits.__dataclass_fields__ if name in limits}),
    )
    given |= storage | pubsub | cluster
    assert {*given, *(f"limits.{name}" for name in limits)} == set(DECLARED)
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


# A cluster

MEMBER = {"metadata": "etcd://127.0.0.1:2379", "broker_id": "b1", "objects": "s3://bucket"}


@pytest.mark.parametrize(
    ("url", "endpoints", "prefix", "is_tls"),
    [
        ("etcd://127.0.0.1:2379", ("127.0.0.1:2379",), "/sulina", False),
        ("etcd://a.example", ("a.example:2379",), "/sulina", False),
        ("etcd://a:1,b:2,[::1]:3/", ("a:1", "b:2", "[::1]:3"), "/sulina", False),
        ("etcds://a:1/teams/shop/", ("a:1",), "/teams/shop", True),
    ],
)
def test_the_address_of_an_etcd_is_read_once(url: str, endpoints: tuple[str, ...], prefix: str, is_tls: bool) -> None:
    etcd = loaded({**MEMBER, "metadata": url}).etcd
    assert etcd == EtcdAddress(endpoints=endpoints, prefix=prefix, is_tls=is_tls)


def test_a_node_alone_has_no_etcd() -> None:
    assert loaded().etcd is None
    assert loaded({"metadata": "sqlite"}).etcd is None


@pytest.mark.parametrize("objects", ["s3://b", "s3://b/p/q", "gs://b/p", "az://c/p", "file:///srv/objects"])
def test_an_object_store_is_a_cloud_or_a_directory(objects: str) -> None:
    assert loaded({**MEMBER, "objects": objects}).objects == objects


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        ({"metadata": "zookeeper://a:1"}, ["--metadata", "etcd://HOST:PORT", "'zookeeper://a:1'"]),
        ({"metadata": "etcd:a"}, ["--metadata", "etcd://HOST:PORT"]),
        ({"metadata": "etcd://a:1,"}, ["--metadata", "''", "HOST:PORT"]),
        ({"metadata": "etcd://a:99999"}, ["--metadata", "a:99999"]),
        ({"metadata": "etcd://a/b c"}, ["--metadata", "prefix"]),
        ({"broker_id": None}, ["--metadata", "--broker-id", "SULINA_BROKER_ID"]),
        ({"objects": None}, ["--metadata", "--objects", "SULINA_OBJECTS", "file:///DIR"]),
        ({"objects": "file://objects"}, ["--objects", "file:///DIR"]),
        ({"objects": "file:///"}, ["--objects", "file:///DIR"]),
        ({"objects": "/srv/objects"}, ["--objects", "file:///DIR"]),
        ({"objects": "ftp://host/x"}, ["--objects", "s3://BUCKET/PREFIX"]),
        ({"objects": "s3://"}, ["--objects", "s3://BUCKET/PREFIX"]),
        ({"objects_endpoint": "localhost:9000"}, ["--objects-endpoint", "http://127.0.0.1:9000"]),
        ({"objects": "file:///d", "objects_endpoint": "http://a:1"}, ["--objects-endpoint", "endpoint"]),
        ({"lease_seconds": 0.1}, ["--lease-seconds", "from 1 to 600"]),
        ({"lease_seconds": "soon"}, ["--lease-seconds", "'soon'"]),
        ({"lease_seconds": True}, ["--lease-seconds"]),
        ({"rebalance_seconds": 0}, ["--rebalance-seconds", "from 1 to 86400"]),
        ({"subscriber_timeout_seconds": 0}, ["--subscriber-timeout-seconds", "from 0.05 to 3600"]),
        ({"suspended_ttl_seconds": "never"}, ["--suspended-ttl-seconds", "from 0.05 to 86400", "'never'"]),
        ({"advertise": "b1:8080"}, ["--advertise", "http://"]),
        ({"advertise": "http://b1:8080/path"}, ["--advertise", "without a path"]),
        ({"advertise": "http://b1:x"}, ["--advertise"]),
        ({"advertise": "http://0.0.0.0:80"}, ["--advertise"]),
        ({"http": "0.0.0.0:80", "insecure": True}, ["--http", "--advertise"]),
        ({"peer_host": "a:1"}, ["--peer-host", "without a port", "'a:1'"]),
        ({"peer_host": "10.0.0.1"}, ["--peer-host", "10.0.0.1", "--insecure"]),
        ({"peer_host": "0.0.0.0", "insecure": True}, ["--peer-host", "--peer-advertise", "SULINA_PEER_ADVERTISE"]),
        ({"peer_port": 65536}, ["--peer-port", "65535"]),
        ({"peer_port": "http"}, ["--peer-port", "'http'"]),
        ({"peer_port": True}, ["--peer-port"]),
        ({"peer_advertise": "b1"}, ["--peer-advertise", "HOST:PORT"]),
        ({"peer_advertise": "b1:0"}, ["--peer-advertise", "HOST:PORT"]),
        ({"peer_advertise": "http://b1:9090"}, ["--peer-advertise", "HOST:PORT"]),
        ({"peer_advertise": "0.0.0.0:9090"}, ["--peer-advertise", "HOST:PORT"]),
        ({"metadata_ca": "pem"}, ["--metadata-ca", "etcds://"]),
        ({"metadata": "etcds://a:1", "metadata_ca": "gone"}, ["--metadata-ca", "gone", "No such file"]),
        ({"metadata": "etcds://a:1", "metadata_cert": "pem"}, ["--metadata-cert", "metadata_key"]),
        ({"metadata_user": "u"}, ["--metadata-user", "SULINA_METADATA_PASSWORD"]),
        ({"metadata": "sqlite", "metadata_user": "u"}, ["--metadata-user", "etcd only"]),
    ],
)
def test_what_a_broker_of_a_cluster_lacks_is_said_with_what_to_do(flags: dict[str, Any], says: list[str]) -> None:
    Path("pem").write_text("")
    with pytest.raises(InvalidSettings) as caught:
        loaded({**MEMBER, **flags})
    assert all(word in str(caught.value) for word in says), caught.value


@pytest.mark.parametrize(
    ("flags", "listens", "tells"),
    [
        ({}, "127.0.0.1", "127.0.0.1:7"),
        ({"http": "[::1]:80"}, "::1", "[::1]:7"),
        ({"peer_host": "localhost"}, "localhost", "localhost:7"),
        ({"peer_host": "[::1]"}, "::1", "[::1]:7"),
        ({"peer_advertise": "b1.example:9"}, "127.0.0.1", "b1.example:9"),
        ({"http": "0.0.0.0:80", "insecure": True, "advertise": "http://b1.example:80"}, "0.0.0.0", "b1.example:7"),
        ({"http": "0.0.0.0:80", "insecure": True, "advertise": "http://[::1]:80"}, "0.0.0.0", "[::1]:7"),
    ],
)
def test_other_brokers_are_told_an_address_that_they_can_use(flags: dict[str, Any], listens: str, tells: str) -> None:
    settings = loaded({**MEMBER, **flags})
    assert settings.peer_listen_host == listens
    assert settings.peer_address(7) == tells


@pytest.mark.parametrize(
    "flags",
    [
        {"metadata": "etcd://root:hunter2@a:1"},
        {"metadata": "etcd//root:hunter2@a:1"},
        {"metadata": "etcd://root:hun/ter2@a:1"},
        {"objects": "s3://key:hunter2@bucket/p"},
        {"objects_endpoint": "http://key:hunter2@a:1"},
        {"advertise": "http://key:hunter2@a:1"},
        {"metadata_password": 42_4242},
        {"metadata_password": "hunter2"},
    ],
)
def test_secrets_are_not_shown_also_where_they_are_wrong(flags: dict[str, Any]) -> None:
    with pytest.raises(InvalidSettings) as caught:
        loaded({**MEMBER, **flags})
    assert not any(word in str(caught.value) for word in ("hun", "ter2", "424242"))


def test_settings_are_shown_without_their_secret() -> None:
    settings = loaded({**MEMBER, "metadata_user": "u", "metadata_password": "hunter2"})
    assert settings.metadata_password == "hunter2"
    assert "hunter2" not in repr(settings)
