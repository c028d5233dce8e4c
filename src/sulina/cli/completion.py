"""`sulina --install-completion`: the shell completes commands, flags and their choices."""

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
    """Complete commands and flags in your shell.

    Parameters
    ----------
    shell
        Which one; without it the shell that runs this command.
    output
        Where to put the script, instead of where the shell looks for it.
    print_only
        Print the script, and install nothing.
    """
    from cyclopts.completion import ShellDetectionError

    from sulina.cli import app

    try:
        if print_only:
            terminal.write(app.generate_completion(shell=shell).encode())
            return 0
        path = app.install_completion(shell=shell, output=output, add_to_startup=output is None)
    except ShellDetectionError:
        terminal.complain("this shell is not known", hint="name it with --shell", code="usage", as_json=False)
        return 2
    terminal.done(f"completion is in {path}; start a new shell to use it")
    return 0
