"""The peer: a Starlette route that parses the JSON of a publish, and does nothing with it.

The same server under the same settings as ours. Prints its port, and ends with its standard input.
"""

import asyncio
import socket
import sys

import msgspec
import uvicorn
import uvloop
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from sulina.listeners.http_records import PublishIn

ANSWER = b'{"partition":0,"base_offset":1234567,"count":1,"version":12345,"ack":"local"}'


async def publish(request: Request) -> Response:
    """What any service that takes records must at least do."""
    msgspec.json.decode(await request.body(), type=PublishIn)
    return Response(ANSWER, media_type="application/json")


async def serve() -> None:
    """Until whoever started it lets go."""
    app = Starlette(routes=[Route("/v1/topics/{namespace}/{topic}/records", publish, methods=["POST"])])
    listener = socket.create_server(("127.0.0.1", 0), backlog=2048)
    config = uvicorn.Config(
        app,
        loop="none",
        http="httptools",
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
    )
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listener]))
    print(listener.getsockname()[1], flush=True)  # it listens already; who comes before it accepts waits a moment
    await asyncio.to_thread(sys.stdin.read)
    server.should_exit = True
    await serving


if __name__ == "__main__":
    uvloop.run(serve())
