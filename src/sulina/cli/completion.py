"""Command `sulina --install-completion`: completion of commands, options and choices in the shell."""

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from sulina.cli import terminal


def install(
    *,
    shell: Literal["bash", "zsh", "fish", "powershell"] | None = None,
    output: Annotated[Path | None, Parameter(alias="-o")] = None,
    print_only: Annotated[bool, Parameter(name="--print")] = False,
) -> int:
    """Install completion of commands and options in your shell.

    Parameters
    ----------
    shell
        Shell to install it for. Default: the shell that runs this command.
    output
        File to write the script to. Default: where the shell looks for it.
    print_only
        Print the script instead of installing it.
    """
    from cyclopts.completion import ShellDetectionError

    from sulina.cli import app

    try:
        if print_only:
            terminal.write(app.generate_completion(shell=shell).encode())
            return 0
        path = app.install_completion(shell=shell, output=output, add_to_startup=output is None)
    except ShellDetectionError:
        terminal.complain("cannot tell which shell this is", hint="name it with --shell", code="usage", as_json=False)
        return 2
    terminal.done(f"installed completion in {path}; start a new shell to use it")
    return 0
