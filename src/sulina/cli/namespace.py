"""Commands `sulina namespace create|list|show|delete`."""

from typing import TYPE_CHECKING

from cyclopts import App, Group

from sulina.cli import terminal
from sulina.cli.flags.policy import NOTHING_SAID, PolicyFlags, policy_text
from sulina.cli.flags.remote import HERE, Remote
from sulina.errors import NamespaceNotFound

if TYPE_CHECKING:
    from sulina.client import Client
    from sulina.wire.messages import NamespaceInfo

app = App(name="namespace", help="Create, list, show and delete namespaces.", group_commands=Group("Commands"))


@app.command
def create(namespace: str, /, *, policy: PolicyFlags = NOTHING_SAID, remote: Remote = HERE) -> None:
    """Create a namespace, or change the policy of an existing one.

    Parameters
    ----------
    namespace
        Name of the namespace: letters, digits, `_` and `-`.
    """
    wanted = policy.policy()

    async def make(client: "Client") -> "tuple[str, NamespaceInfo]":
        try:
            await client.admin.namespace(namespace)
            done = "updated"
        except NamespaceNotFound:
            done = "created"
        return done, await client.admin.create_namespace(namespace, policy=wanted)

    done, info = remote.run(make)
    if remote.json:
        return terminal.print_json(info)
    return terminal.done(f"{done} namespace {info.namespace}")


@app.command(name="list")
def list_(*, remote: Remote = HERE) -> None:
    """List the namespaces."""
    namespaces = remote.run(lambda client: client.admin.namespaces())
    if remote.json:
        return terminal.print_json(namespaces)
    rows = [(info.namespace, info.topics, policy_text(info.policy)) for info in namespaces]
    return terminal.print_table(("namespace", "topics", "policy"), rows, right=("topics",))


@app.command
def show(namespace: str, /, *, remote: Remote = HERE) -> None:
    """Show a namespace and the policy that its topics inherit.

    Parameters
    ----------
    namespace
        Name of the namespace.
    """
    info = remote.run(lambda client: client.admin.namespace(namespace))
    if remote.json:
        return terminal.print_json(info)
    return terminal.print_facts(
        {"namespace": info.namespace, "topics": info.topics, "policy": policy_text(info.policy) or None}
    )


@app.command
def delete(namespace: str, /, *, remote: Remote = HERE) -> None:
    """Delete a namespace that has no topics.

    Parameters
    ----------
    namespace
        Name of the namespace.
    """
    remote.run(lambda client: client.admin.delete_namespace(namespace))
    if remote.json:
        return terminal.print_json({"deleted": namespace})
    return terminal.done(f"deleted namespace {namespace}")
