"""The command line: one module or package for each command, imported when the command is called.

`flags` has the options that commands share, `terminal` their output.
"""

import contextlib
import sys
from collections.abc import Iterator, Sequence

from cyclopts import App, CycloptsError, Group, Parameter

from sulina.errors import SulinaError

USAGE = 2
FAILED = 1
INTERRUPTED = 130  # 128 + SIGINT, as shells report it

_NODE = Group("Node", sort_key=1)
_RECORDS = Group("Records", sort_key=2)
_NAMES = Group("Topics", sort_key=3)
_TABLES = Group("Tables", sort_key=4)
_CLUSTER = Group("Cluster", sort_key=5)
_ITSELF = Group("This command", sort_key=6)


def _default_text(value: object) -> object:
    """Return the default that help shows; None for defaults that go without saying."""
    return None if value in (None, False, ()) else value


app = App(
    name="sulina",
    help="Publish/subscribe where every topic is an ACID log and every log is a table.\n\n"
    "Start with `sulina demo` or `sulina cluster start`. Every command has --help; commands with a result have --json.",
    help_format="plaintext",
    default_parameter=Parameter(negative=(), show_default=_default_text),
    result_action="return_int_as_exit_code_else_zero",
    group_commands=_ITSELF,
)
# The help texts are repeated here, so that `sulina --help` imports no command.
_COMMANDS = [
    (
        "serve",
        "sulina.cli.serve:serve",
        _NODE,
        "Start a node, and serve until SIGTERM or Ctrl-C. A second signal stops it at once.\n\n"
        "Every option can also be set in the environment (SULINA_DATA, SULINA_HTTP, …) or in a TOML file. Options "
        "override the environment, and the environment overrides the file.",
    ),
    (
        "demo",
        "sulina.cli.demo:demo",
        _NODE,
        "Watch a node at work: it takes records, is killed in the middle, and loses none of them.",
    ),
    (
        "doctor",
        "sulina.cli.doctor:doctor",
        _NODE,
        "Check that this machine can run a node, or diagnose a cluster. Exit code 1 if a check fails.",
    ),
    ("produce", "sulina.cli.produce:produce", _RECORDS, "Publish lines, files or generated records to a topic."),
    (
        "consume",
        "sulina.cli.consume:consume",
        _RECORDS,
        "Print the records of a topic from a position on, or as a consumer of a subscription.\n\n"
        "Reading from a position changes nothing on the node. A consumer of a subscription acknowledges the records "
        "that it has printed; the next consumer continues after them.",
    ),
    ("tail", "sulina.cli.consume:tail", _RECORDS, "Print the newest records of a topic, then new ones as they arrive."),
    (
        "events",
        "sulina.cli.events:events",
        _RECORDS,
        "Show the events of a node live: publishes, deliveries, subscribers, topics.\n\n"
        "In a cluster these are the events of the one broker that the command is connected to.",
    ),
    (
        "topic",
        "sulina.cli.topic:app",
        _NAMES,
        "Create, list, show, delete and move topics; show their owners, producers and subscribers.",
    ),
    ("namespace", "sulina.cli.namespace:app", _NAMES, "Create, list, show and delete namespaces."),
    ("subscription", "sulina.cli.subscription:app", _NAMES, "Create, list, show, seek and delete subscriptions."),
    ("reader", "sulina.cli.reader:app", _NAMES, "List, show and delete registered readers."),
    ("pipeline", "sulina.cli.pipeline:app", _TABLES, "Turn topics into Delta Lake tables, exactly once."),
    ("table", "sulina.cli.table:app", _TABLES, "Compact, vacuum and inspect Delta Lake tables."),
    (
        "audit",
        "sulina.cli.audit:audit",
        _TABLES,
        "Check a topic with Spark: every offset exists once, checksums match, versions have no gap, and a table equals "
        "the log.\n\n"
        "Exit code 0 if everything is right, 1 if not; the report says where. Records that are published during the "
        "audit are not checked.",
    ),
    ("broker", "sulina.cli.broker:app", _CLUSTER, "List, drain and activate the brokers of a cluster."),
    ("cluster", "sulina.cli.cluster:app", _CLUSTER, "Show, rebalance or recover a cluster, or start one to try out."),
    (
        "--install-completion",
        "sulina.cli.completion:install",
        _ITSELF,
        "Install completion of commands and options in your shell.",
    ),
]
# Options as other programs have them, and ours.
_LISTEN = "--http 127.0.0.1:9000, or another address and port"
_OTHER_WORDS = {
    ("sulina serve", "--port"): _LISTEN,
    ("sulina serve", "--host"): _LISTEN,
    ("sulina serve", "--listen"): _LISTEN,
    ("sulina serve", "--bind"): _LISTEN,
    ("sulina serve", "--data-dir"): "--data",
    ("sulina consume", "--from-beginning"): "--start earliest",
    ("sulina consume", "--offset"): "--start offset:N",
    ("sulina consume", "--from"): "--start",
    ("sulina consume", "--group"): "--subscription",
}
for _name, _path, _group, _help in _COMMANDS:
    app.command(_path, name=_name, group=_group, help=_help)


def main() -> None:
    """Run the `sulina` script."""
    sys.exit(run(sys.argv[1:]))


def run(words: Sequence[str]) -> int:
    """Run one command, and return its exit code. An error is printed as one line, unless it is a bug of Sulina."""
    from sulina.cli import terminal

    words = _node_options_last(words)
    options = words[: words.index("--")] if "--" in words else words
    as_json = "--json" in options
    try:
        try:
            code = _run(words)
        finally:
            is_read = terminal.end_output()
    except BrokenPipeError:
        terminal.end_output()
        return terminal.BROKEN_PIPE
    except KeyboardInterrupt:
        return INTERRUPTED
    except CycloptsError as error:
        command = " ".join(["sulina", *(error.command_chain or ())])
        text, advice = _usage_text(str(error), command)
        terminal.complain(text, hint=advice, code="usage", as_json=as_json)
        return USAGE
    except SulinaError as error:
        from sulina.cli.flags.remote import hint_for

        hint = "; ".join([*getattr(error, "__notes__", ()), *filter(None, [hint_for(error)])]) or None
        terminal.complain(str(error), hint=hint, code=error.code, details=error.details(), as_json=as_json)
        return FAILED
    except OSError as error:
        if error.filename is None:
            raise  # not about a file of the user's
        terminal.complain(f"{error.filename}: {error.strerror}", hint=None, code="os_error", as_json=as_json)
        return FAILED
    return code if is_read else terminal.BROKEN_PIPE


def _run(words: Sequence[str]) -> int:
    try:
        with _without_spark_errors():
            return int(app(words, exit_on_error=False, print_error=False))
    except BaseExceptionGroup as group:
        raise _first(group) from group


@contextlib.contextmanager
def _without_spark_errors() -> Iterator[None]:
    """Raise errors of Spark as errors of ours, where a command has imported it.

    Raises:
        SulinaError: Spark raised an error.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, SulinaError | CycloptsError) or "pyspark" not in sys.modules:
            raise
        from sulina.spark.errors import own_errors

        with own_errors():
            raise


def _node_options_last(words: Sequence[str]) -> list[str]:
    """Return the words with --url and --json behind the command, where somebody wrote them before it."""
    rest, moved = list(words), list[str]()
    at = 0
    while at < min(len(rest), 2):
        if rest[at] == "--url" and at + 1 < len(rest):
            moved += rest[at : at + 2]
            del rest[at : at + 2]
        elif rest[at] == "--json" or rest[at].startswith("--url="):
            moved.append(rest.pop(at))
        else:
            at += 1
    end = rest.index("--") if "--" in rest else len(rest)
    return [*rest[:end], *moved, *rest[end:]]


def _usage_text(text: str, command: str) -> tuple[str, str]:
    """Return what is wrong with the words of a command, and what to do: our option for another program's, or --help."""
    for word in text.replace("=", " ").replace(".", " ").split():
        if ours := _OTHER_WORDS.get((command, word)):
            return text.partition(" Did you mean")[0].rstrip("."), f"use {ours}; see `{command} --help`"
    return text if text.endswith("...") else text.removesuffix("."), f"see `{command} --help`"


def _first(error: BaseException) -> BaseException:
    """Return the first error of tasks that ran together."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
