"""A Python in which the blocks of a page are typed one after the other: `Typing` is the side of the tests, `main` it.

Its standard input has the names of files, one in a line. It runs each in the same namespace, and tells that it is done.
"""

import os
import selectors
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

END_SECONDS = 30.0


class Typing:
    """A Python that stays open while a page is read."""

    def __init__(self, folder: Path, environment: Mapping[str, str], output: BinaryIO) -> None:
        self._reading, writing = os.pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-P", __file__, str(writing)],
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            pass_fds=[writing],
        )
        os.close(writing)

    def run(self, file: Path, seconds_max: float) -> int:
        """Return 0 when a file has run to its end; else the code with which Python ended."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{file}\n".encode())
        self._process.stdin.flush()
        with selectors.DefaultSelector() as selector:
            selector.register(self._reading, selectors.EVENT_READ)
            if not selector.select(seconds_max):
                raise subprocess.TimeoutExpired(str(file), seconds_max)
            return 0 if os.read(self._reading, 1) else self._process.wait(END_SECONDS)

    def close(self) -> None:
        """End it, as ctrl-D does."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(END_SECONDS)
        os.close(self._reading)


def main(done: int) -> None:
    """Run what is named on standard input."""
    namespace = {"__name__": "__main__"}
    for line in sys.stdin:
        name = line.strip()
        exec(compile(Path(name).read_text(), name, "exec"), namespace)
        sys.stdout.flush()
        os.write(done, b".")


if __name__ == "__main__":
    main(int(sys.argv[1]))
