"""The command line: one module for each command, imported when it is called."""

import sys
from collections.abc import Sequence

from cyclopts import App, CycloptsError, Group, Parameter

from sulina.errors import SulinaError

USAGE = 2
FAILED = 1
INTERRUPTED = 130  # as the shell says it of any other program

_NODE = Group("Node", sort_key=1)
_RECORDS = Group("Records", sort_key=2)
_NAMES = Group("Topics", sort_key=3)
_TABLES = Group("Tables", sort_key=4)
_CLUSTER = Group("Cluster", sort_key=5)
_ITSELF = Group("This command", sort_key=6)


def _default_text(value: object) -> object:
    """What help shows as a default: nothing where it goes without saying."""
    return None if value in (None, False, ()) else value


app = App(
    name="sulina",
    help="Publish/subscribe where every topic is an ACID log and every log is a table.\n\n"
    "Start with `sulina demo`, or `sulina cluster start`. Every command has --help, and --json where it answers "
    "something.",
    help_format="plaintext",
    default_parameter=Parameter(negative=(), show_default=_default_text),
    result_action="return_int_as_exit_code_else_zero",
    group_commands=_ITSELF,
)
# Their help is here too, so that `sulina --help` imports none of them.
_COMMANDS = [
    (
        "serve",
        "sulina.cli.serve:serve",
        _NODE,
        "Start a node, and serve until SIGTERM or Ctrl-C. A second one ends it at once.\n\n"
        "Every flag can be given in the environment (SULINA_DATA, SULINA_HTTP, …) or in a TOML file too. A flag counts "
        "more than the environment, the environment more than the file.",
    ),
    ("demo", "sulina.cli.demo:demo", _NODE, "See a node at work, live: it is filled, read, killed, and loses nothing."),
    (
        "doctor",
        "sulina.cli.doctor:doctor",
        _NODE,
        "Check this machine for what a node needs, or what is wrong with a cluster. Exit code 1: it fails.",
    ),
    ("produce", "sulina.cli.produce:produce", _RECORDS, "Publish lines, files or generated records to a topic."),
    (
        "consume",
        "sulina.cli.consume:consume",
        _RECORDS,
        "Read a topic from some point on, or take part in a subscription.\n\n"
        "A reader leaves no trace. A consumer of a subscription acknowledges what it has printed; whoever comes next "
        "goes on after it.",
    ),
    ("tail", "sulina.cli.consume:tail", _RECORDS, "Show the newest records of a topic, then those that come."),
    (
        "events",
        "sulina.cli.events:events",
        _RECORDS,
        "Show what happens on a node, live: publishes, deliveries, subscribers, topics.\n\n"
        "In a cluster it is what happens on the broker that is asked.",
    ),
    (
        "topic",
        "sulina.cli.topic:app",
        _NAMES,
        "Create, list, show, delete, look up, unload and move topics; list their producers and subscribers.",
    ),
    ("namespace", "sulina.cli.namespace:app", _NAMES, "Create, list, show and delete namespaces."),
    ("subscription", "sulina.cli.subscription:app", _NAMES, "Create, list, show, move and delete subscriptions."),
    ("reader", "sulina.cli.reader:app", _NAMES, "List, show and delete registered readers."),
    ("pipeline", "sulina.cli.pipeline:app", _TABLES, "Turn topics into Delta Lake tables, exactly once."),
    ("table", "sulina.cli.table:app", _TABLES, "Compact, clean up and look into Delta Lake tables."),
    (
        "audit",
        "sulina.cli.audit:audit",
        _TABLES,
        "Prove that every offset exists once, checksums hold, versions have no gap, and a table equals the log.\n\n"
        "Exit code 0: all of it holds. 1: it does not, and the report says where. What comes while it runs is not "
        "looked at.",
    ),
    ("broker", "sulina.cli.broker:app", _CLUSTER, "List, drain and activate the brokers of a cluster."),
    ("cluster", "sulina.cli.cluster:app", _CLUSTER, "Show, rebalance, or try out a cluster of brokers."),
    ("--install-completion", "sulina.cli.completion:install", _ITSELF, "Complete commands and flags in your shell."),
]
for _name, _path, _group, _help in _COMMANDS:
    app.command(_path, name=_name, group=_group, help=_help)


def main() -> None:
    """The entry point of the `sulina` script."""
    sys.exit(run(sys.argv[1:]))


def run(words: Sequence[str]) -> int:
    """One command, to its exit code. Whatever goes wrong is told in one line, unless it is a bug of ours."""
    from sulina.cli import terminal

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
        terminal.complain(str(error), hint=f"see `{command} --help`", code="usage", as_json=as_json)
        return USAGE
    except SulinaError as error:
        from sulina.cli.remote import hint_for

        hint = "; ".join([*getattr(error, "__notes__", ()), *filter(None, [hint_for(error)])]) or None
        terminal.complain(str(error), hint=hint, code=error.code, details=error.details(), as_json=as_json)
        return FAILED
    return code if is_read else terminal.BROKEN_PIPE


def _run(words: Sequence[str]) -> int:
    try:
        return int(app(words, exit_on_error=False, print_error=False))
    except BaseExceptionGroup as group:
        raise _first(group) from group


def _first(error: BaseException) -> BaseException:
    """What went wrong first among tasks that ran together."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
