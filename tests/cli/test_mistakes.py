"""The mistakes of a first hour: each is one clear error, at once, without a trace and before Spark starts.

Commands run in this process, against a real node. What only a process of its own shows is in the last tests.
"""

import json
import os
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

import sulina
from sulina.errors import InvalidSettings
from tests.cli.conftest import SECONDS_MAX, Served, ended, environment, told

EXAMPLES = Path(__file__).parents[2] / "examples"
LINES_MAX = 3  # of an error
NOBODY = "http://127.0.0.1:9"  # the discard port, where nobody listens
SCHEMA = {
    "type": "object",
    "properties": {"order": {"type": "integer"}, "country": {"type": "string"}, "amount": {"type": "number"}},
    "required": ["order", "country", "amount"],
}
HEAD = 'name = "shop"\nurl = "{url}"\ntables = "./tables"\n'
BRONZE = '[[bronze]]\ntable = "orders_raw"\ntopic = "typed"\n'
SILVER = '[[silver]]\ntable = "orders"\nfrom = "orders_raw"\n'
GOLD = '[[gold]]\ntable = "revenue"\nsql = "select country, sum(amount) as revenue from orders group by country"\n'


@pytest.fixture(scope="module")
def shop(node: Served, tmp_path_factory: pytest.TempPathFactory) -> tuple[Served, Path]:
    """The node with some topics, and a folder to work in."""
    folder = tmp_path_factory.mktemp("work")
    (folder / "schema.json").write_text(json.dumps(SCHEMA))
    (folder / "bad.schema").write_text("{")
    (folder / "lines.txt").write_text("one\ntwo\n")
    (folder / "no-table").mkdir()
    node.ok("topic", "create", "orders")
    node.ok("topic", "create", "plain")
    node.ok("topic", "create", "best", "--delivery", "non_reliable")
    for name, checked in (("typed", "--no-validate"), ("valid", "--validate")):
        node.ok("topic", "create", name, "--schema", str(folder / "schema.json"), checked)
    node.ok("produce", "orders", given="a\nb\n")
    return node, folder


@dataclass(frozen=True, slots=True)
class Mistake:
    """Words of a command, the pipeline.toml that is there, and what the error must say."""

    words: str
    says: tuple[str, ...]
    toml: str = ""
    code: int = 1
    variables: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        return self.words.replace(" ", "_") + (f"[{self.says[0][:30]}]" if self.toml else "")


RUN = "pipeline run --once"
ALL = HEAD + BRONZE + SILVER + GOLD
LOST = '[[bronze]]\ntable = "lost_raw"\ntopic = "/default/deleted"\n'  # which no other table needs
MISTAKES = [
    # Pipelines
    Mistake(
        RUN,
        ("shop", "orders_raw", "no topic /default/typd", "did you mean /default/typed?"),
        ALL.replace('"typed"', '"typd"'),
    ),
    Mistake(
        RUN, ("no topic /default/weather", "sulina topic create /default/weather"), ALL.replace('"typed"', '"weather"')
    ),
    Mistake(RUN, (f"no connection to {NOBODY}", "sulina serve", "url in pipeline.toml"), ALL.replace("{url}", NOBODY)),
    Mistake(
        RUN,
        ("bronze table orders_raw", "partition_by names column 'topc'", "did you mean topic?"),
        HEAD + BRONZE + 'partition_by = ["topc"]\n',
    ),
    Mistake(
        RUN,
        ("silver table orders", "partition_by names column 'contry'", "did you mean country?"),
        HEAD + BRONZE + SILVER + 'partition_by = ["contry"]\n',
    ),
    Mistake(
        RUN,
        ("silver table orders", "watermark names column 'att'"),
        HEAD + BRONZE + SILVER + 'watermark = { column = "att", delay = "1 minute" }\n',
    ),
    Mistake(
        RUN,
        ("silver table orders", "deduplicate names column 'ordr'", "did you mean order?"),
        HEAD + BRONZE + SILVER + 'deduplicate = ["ordr"]\nwatermark = { column = "_timestamp", delay = "1 minute" }\n',
    ),
    Mistake(
        RUN,
        ("gold table revenue", "reads no table of the pipeline, but ordrs", "did you mean orders?"),
        ALL.replace("from orders ", "from ordrs "),
    ),
    Mistake(
        RUN,
        ("no bronze table 'orders_rw'", "did you mean orders_raw?"),
        ALL.replace('from = "orders_raw"', 'from = "orders_rw"'),
    ),
    Mistake(RUN, ("missing required field `topic`", "bronze"), HEAD + '[[bronze]]\ntable = "orders_raw"\n'),
    Mistake(RUN, ("unknown field `strat`", "did you mean start?"), HEAD + BRONZE + 'strat = "latest"\n'),
    Mistake(RUN, ("pipeline.toml is not TOML",), "name = shop\n"),
    Mistake("pipeline run pipelin.toml", ("pipelin.toml cannot be read", "did you mean pipeline.toml?"), ALL),
    Mistake(RUN, ("silver table orders", "has no schema"), ALL.replace('"typed"', '"plain"')),
    Mistake(RUN, ("best-effort topic",), ALL.replace('"typed"', '"best"')),
    Mistake(RUN, ("lines.txt is a file", "name another folder"), ALL.replace("./tables", "./lines.txt")),
    Mistake(RUN, ("'begin' is not valid", "earliest"), HEAD + BRONZE + 'start = "begin"\n'),
    Mistake(RUN, ("nowhere is not a folder",), 'name = "shop"\npath = "./nowhere"\ntables = "./t"\n' + BRONZE),
    Mistake(RUN, ("Java",), ALL, variables={"JAVA_HOME": "/nonexistent"}),
    *(
        Mistake(f"pipeline {words}", ("Java",), ALL + LOST, variables={"JAVA_HOME": "/nonexistent"})
        for words in ("replay orders again", "backfill orders_raw", "retry orders")
    ),
    Mistake("pipeline replay order again", ("makes no table order", "did you mean orders?"), ALL),
    Mistake("pipeline stop", ("shop is not running on this machine",), ALL),
    # Audits and tables
    Mistake("audit nosuch", ("there is no topic /default/nosuch", "sulina topic create")),
    Mistake("audit ordrs", ("there is no topic /default/ordrs", "did you mean /default/orders?")),
    Mistake("audit orders --table ./nosuch", ("no Delta table", "nosuch")),
    Mistake(f"audit orders --url {NOBODY}", (f"no connection to {NOBODY}",)),
    Mistake("table optimize ./no-table", ("no Delta table",)),
    Mistake("table history ./nosuch", ("no Delta table",)),
    # The node
    Mistake(f"topic list --url {NOBODY}", (f"no connection to {NOBODY}", "sulina serve")),
    Mistake("topic list --url https://{address}", ("speaks http, so use http://{address}",)),
    Mistake("topic list --url {address}", ("is not the URL of a node", "did you mean http://{address}?")),
    Mistake("serve --port 9000", ("--http 127.0.0.1:",), code=2),
    Mistake("serve --http {address} --data ./d", ("in use", "--http")),
    Mistake("serve --http 127.0.0.1:0 --data lines.txt", ("cannot write to the data directory", "--data")),
    Mistake("serve --http 127.0.0.1:0 --dta x", ("--dta",), code=2),
    # Commands and options
    Mistake("topik list", ("topik", "topic"), code=2),
    Mistake("topic creat x", ("creat", "create"), code=2),
    Mistake("consume orders --strat earliest", ("--strat", "--start"), code=2),
    Mistake("consume orders --from-beginning", ("use --start earliest",), code=2),
    Mistake("produce", ("TOPIC",), code=2),
    Mistake("topic create x --partitions two", ("--partitions", "two"), code=2),
    # Topics and records
    Mistake("consume ordrs", ("there is no topic /default/ordrs", "did you mean /default/orders?")),
    Mistake("produce ordrs lines.txt", ("there is no topic /default/ordrs", "did you mean /default/orders?")),
    Mistake("produce orders nosuch.txt", ("nosuch.txt", "No such file")),
    Mistake("produce valid lines.txt", ("does not fit the topic's schema",)),
    Mistake("produce orders lines.txt --partition 7", ("no partition 7",)),
    Mistake("consume orders --partition 7", ("no partition 7",)),
    Mistake("consume orders --start begining", ("'begining' is not valid", "earliest")),
    Mistake("topic create x --schema bad.schema", ("bad.schema", "not JSON")),
    Mistake("topic create x --schema nosuch.json", ("nosuch.json", "No such file")),
    Mistake("topic create orders --partitions 3", ("exists already with other settings", "partitions is 1, not 3")),
    Mistake("topic create a/b", ("'a/b' is not valid", "/namespace/topic")),
    Mistake("topic create /shop/orders", ("shop", "sulina namespace create shop")),
    Mistake("topic create x --retention-seconds=-1", ("retention_seconds",)),
    Mistake("topic delete ordrs --yes", ("there is no topic /default/ordrs", "did you mean /default/orders?")),
    Mistake("topic move orders --to b9", ("not part of a cluster",)),
    Mistake("reader delete nosuch orders", ("nosuch", "sulina reader list")),
    Mistake("subscription show orders nosuch", ("nosuch", "sulina subscription list")),
    Mistake("namespace delete default", ("default", "sulina topic list --namespace default")),
]


@pytest.mark.parametrize("mistake", MISTAKES, ids=str)
def test_a_mistake_is_one_clear_error_before_spark_starts(
    shop: tuple[Served, Path],
    mistake: Mistake,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    node, folder = shop
    address = node.url.removeprefix("http://")
    for name in [name for name in os.environ if name.startswith(("SULINA_", "SPARK_"))]:
        monkeypatch.delenv(name)
    ours = {"SULINA_URL": node.url, "NO_COLOR": "1", "XDG_RUNTIME_DIR": str(folder)}
    for name, value in (ours | mistake.variables).items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(folder)
    (folder / "pipeline.toml").write_text(mistake.toml.replace("{url}", node.url))
    done = told(capfd, *mistake.words.replace("{address}", address).split())
    assert done.code == mistake.code, done
    for says in mistake.says:
        assert says.replace("{address}", address) in done.err, done
    assert done.out == ""
    assert "Traceback" not in done.err
    assert "starting Spark" not in done.err or "Java" in done.err
    assert len(done.err.strip().splitlines()) <= LINES_MAX, done.err
    assert not (folder / "tables").exists(), "nothing was made"


def test_f5_the_url_may_stand_before_the_command(node: Served, capfd: pytest.CaptureFixture[str]) -> None:
    node.ok("topic", "create", "anywhere")
    for words in (
        ("--url", node.url, "topic", "show", "anywhere", "--json"),
        (f"--url={node.url}", "--json", "topic", "show", "anywhere"),
        ("topic", "--url", node.url, "show", "anywhere", "--json"),
    ):
        done = told(capfd, *words)
        assert (done.code, json.loads(done.out)["topic"]["topic"]) == (0, "/default/anywhere"), done


def test_a_file_may_be_named_without_an_option_and_a_tab_written_as_people_do(node: Served, tmp_path: Path) -> None:
    node.ok("topic", "create", "files")
    (tmp_path / "tabs.txt").write_text("k\tv\nl\tw\n")
    node.ok("produce", "files", str(tmp_path / "tabs.txt"), "--key-separator", r"\t")
    records = node.ok("consume", "files", "--no-follow", "--json").lines
    assert [(record["key"], record["value"]) for record in records] == [("k", "v"), ("l", "w")]


def test_creating_a_topic_that_exists_says_what_differs(node: Served) -> None:
    node.ok("topic", "create", "twice", "--retention-seconds", "60")
    same = node.ok("topic", "create", "twice").out
    assert same == "/default/twice exists already with 1 partition and these settings; nothing was changed\n"
    changed = node.ok("topic", "create", "twice", "--retention-seconds", "90").out
    assert changed == "updated /default/twice with 1 partition: retention_seconds from 60.0 to 90.0\n"


def test_a_second_consumer_of_an_exclusive_subscription_is_told(node: Served) -> None:
    node.ok("topic", "create", "sole")
    node.ok("produce", "sole", given="one\n")
    with node.started("consume", "sole", "--subscription", "s", "--start", "earliest") as first:
        assert first.stdout is not None
        assert b"one" in first.stdout.readline()
        second = node.run("consume", "sole", "--subscription", "s")
    assert second.code == 1
    assert "it is exclusive, and a consumer is attached" in second.err
    assert "--mode shared" in second.err
    assert len(second.err.splitlines()) == 1


def test_another_server_than_a_node_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    class Quiet(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as other:
        Thread(target=other.serve_forever, daemon=True).start()
        done = told(capfd, "topic", "list", "--url", f"http://127.0.0.1:{other.server_address[1]}")
        other.shutdown()
    assert (done.code, done.out) == (1, "")
    assert "is not a node" in done.err
    with socket.create_server(("127.0.0.1", 0)) as silent:

        def hang_up() -> None:
            connection, _ = silent.accept()
            connection.sendall(b"220 mail\r\n")
            connection.close()

        Thread(target=hang_up, daemon=True).start()
        done = told(capfd, "topic", "list", "--url", f"http://127.0.0.1:{silent.getsockname()[1]}")
    assert "is not a node" in done.err, done


def test_a_file_that_cannot_be_written_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    done = told(capfd, "pipeline", "init", "--example", str(tmp_path / "no" / "such" / "pipeline.toml"))
    assert done.code == 1
    assert "pipeline.toml cannot be written: No such file or directory" in done.err


def test_two_nodes_cannot_have_one_data_directory(node: Served) -> None:
    data = node.serving.data
    done = ended("serve", "--http", "127.0.0.1:0", "--data", str(data))
    assert done.code == 1
    assert "another node uses this directory" in done.err
    assert "Traceback" not in done.err


def test_python_says_what_is_wrong_in_one_sentence(node: Served) -> None:
    with pytest.raises(InvalidSettings, match="did you mean http://localhost:8080"):
        sulina.connect_sync("localhost:8080")
    with pytest.raises(InvalidSettings, match="speaks http, so use http://"):
        sulina.connect_sync(node.url.replace("http:", "https:"))
    with pytest.raises(TypeError, match="async with"), sulina.connect(node.url):
        pass


@pytest.mark.parametrize("example", ["chat.py ada", "request_reply.py server", "fan_out.py --messages 10000000"])
def test_ctrl_c_ends_an_example_without_a_trace(node: Served, example: str) -> None:
    name, *words = example.split()
    with subprocess.Popen(
        [sys.executable, str(EXAMPLES / name), *words, "--url", node.url],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environment(),
    ) as process:
        assert process.stdout is not None
        try:
            process.stdout.readline()
            process.send_signal(signal.SIGINT)
            _, err = process.communicate(timeout=SECONDS_MAX)
        finally:
            process.kill()
    assert (process.returncode, err) == (130, b"")


@pytest.mark.parametrize("example", ["chat.py ada", "request_reply.py client", "fan_out.py"])
def test_an_example_without_a_node_says_so(example: str) -> None:
    name, *words = example.split()
    command = [sys.executable, str(EXAMPLES / name), *words, "--url", NOBODY]
    done = subprocess.run(command, input="", capture_output=True, text=True, timeout=SECONDS_MAX, check=False)
    assert done.returncode == 1
    assert "sulina serve" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_request_without_a_server_says_so(node: Served) -> None:
    command = [sys.executable, str(EXAMPLES / "request_reply.py"), "client", "--url", node.url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS_MAX, check=False)
    assert done.returncode == 1
    assert "is there a server?" in done.stderr
    assert "Traceback" not in done.stderr
