"""Ask for a fork instead of starting Python, and be its stand-in: `spark_python.sh -m module arguments` runs this.

It hands over its arguments, environment and standard files, waits, and ends with the exit code of the fork. When this
process is killed, the other side of its connection ends the fork. It imports little: starting it must cost nothing.
"""

import json
import os
import socket
import sys


def main() -> int:
    """Return the exit code of the fork."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.connect(os.environ["SULINA_SPARK_PYTHON"])
        request = {"arguments": sys.argv[1:], "environment": dict(os.environ), "cwd": os.getcwd()}
        body = json.dumps(request).encode()
        socket.send_fds(server, [len(body).to_bytes(4)], [0, 1, 2])
        server.sendall(body)
        for standard in (0, 1, 2):
            os.close(standard)  # only the fork has them now: what it closes is closed
        code = server.recv(1)
    return code[0] if code else 1


if __name__ == "__main__":
    os._exit(main())
