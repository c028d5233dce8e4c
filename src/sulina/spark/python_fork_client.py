"""The Python that Spark starts where `python_forks` serves: asks for a fork, and stands for it until it ends.

    python -IS python_fork_client.py SOCKET -m module arguments

It passes on its arguments, environment and standard files, and ends with the fork's exit code. When this process is
killed, the server sees its connection end, and ends the fork. What the server has not loaded, or all if it is gone, is
run by Python itself. This file imports little: it is started for each of Spark's Python processes.
"""

import json
import os
import socket
import sys

FORKED = ("pyspark.daemon", "sulina.spark.daemon", "pyspark.sql.streaming.python_streaming_source_runner")


def ask(address: str, arguments: list[str]) -> int | None:
    """Return the exit code of a fork that runs these arguments; None: no server has made one."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        try:
            server.connect(address)
        except OSError:
            return None
        request = {"arguments": arguments, "environment": dict(os.environ), "cwd": os.getcwd()}
        body = json.dumps(request).encode()
        try:
            socket.send_fds(server, [len(body).to_bytes(4, "big")], [0, 1, 2])
            server.sendall(body)
            if not server.recv(1):  # sent when there is a fork
                return None
        except OSError:
            return None
        for standard in (0, 1, 2):
            os.close(standard)  # only the fork has them now: what it closes is closed
        try:
            code = server.recv(1)
        except OSError:
            return 1
    return code[0] if code else 1


def main() -> int:
    """Return the exit code of the fork, or become Python itself."""
    address, *arguments = sys.argv[1:]
    is_forked = len(arguments) > 1 and arguments[0] == "-m" and arguments[1] in FORKED
    code = ask(address, arguments) if is_forked else None
    if code is None:
        os.execv(sys.executable, [sys.executable, *arguments])
    return code


if __name__ == "__main__":
    os._exit(main())
