"""gRPC writes nothing to the terminal, in whatever order modules are imported."""

import os
import subprocess
import sys

# A handshake that fails is what gRPC would log.
SCRIPT = """
import {module}, os, socket, threading
import grpc

server = socket.create_server(("127.0.0.1", 0))

def serve():
    while True:
        connection, _ = server.accept()
        connection.sendall(b"HTTP/1.0 400 no TLS here" + b"\\r\\n" * 2)
        connection.close()

threading.Thread(target=serve, daemon=True).start()
channel = grpc.secure_channel(f"localhost:{{server.getsockname()[1]}}", grpc.ssl_channel_credentials())
try:
    channel.unary_unary("/a/b")(b"", timeout=20)
except grpc.RpcError as error:
    print(error.code().name, os.environ.get("GRPC_VERBOSITY"))
"""


def output_of(module: str, **variables: str) -> tuple[str, str]:
    environment = {name: value for name, value in os.environ.items() if name != "GRPC_VERBOSITY"} | variables
    script = SCRIPT.format(module=module)
    ended = subprocess.run(
        [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True, timeout=60
    )
    return ended.stdout.strip(), ended.stderr


def test_failed_connections_are_not_written_to_the_terminal() -> None:
    assert output_of("sulina.metadata.etcd") == ("UNAVAILABLE None", "")


def test_a_log_level_of_the_user_stays() -> None:
    out, err = output_of("sulina.metadata.etcd", GRPC_VERBOSITY="INFO")
    assert out == "UNAVAILABLE INFO"
    assert "andshake" in err
