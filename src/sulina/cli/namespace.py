"""`sulina namespace create|list|show|delete`."""

from cyclopts import App, Group

from sulina.cli import terminal
from sulina.cli.policy import NOTHING_SAID, PolicyFlags, policy_text
from sulina.cli.remote import HERE, Remote

app = App(name="namespace", help="Create, list, show and delete namespaces.", group_commands=Group("Commands"))


@app.command
def create(namespace: str, /, *, policy: PolicyFlags = NOTHING_SAID, remote: Remote = HERE) -> None:
    """Create a namespace; one that exists gets the new policy.

    Parameters
    ----------
    namespace
        Its name, of letters, digits, `_` and `-`.
    """
    wanted = policy.policy()
    info = remote.run(lambda client: client.admin.create_namespace(namespace, policy=wanted))
    if remote.json:
        return terminal.print_json(info)
    return terminal.done(f"namespace {info.namespace} is there")


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
    """Show one namespace, and what its topics inherit.

    Parameters
    ----------
    namespace
        Its name.
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
        Its name.
    """
    remote.run(lambda client: client.admin.delete_namespace(namespace))
    if remote.json:
        return terminal.print_json({"deleted": namespace})
    return terminal.done(f"namespace {namespace} is deleted")
