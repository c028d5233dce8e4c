"""The command line: one module for each command, imported when it is called."""

from cyclopts import App

app = App(name="sulina", help="Publish/subscribe where every topic is an ACID log and every log is a table.")
app.command("sulina.cli.demo:demo", name="demo")


def main() -> None:
    """The entry point of the `sulina` script."""
    app()
