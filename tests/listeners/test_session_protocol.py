"""A client says which frames it speaks; a node that does not know them says so, on both sides (L18)."""

from pathlib import Path

import pytest

import sulina
from sulina.client import ClientOptions, WebSocketConnector, websocket
from sulina.errors import NewerFormat, ProtocolError
from tests.support.serving import serving


async def test_l18_a_client_of_a_newer_protocol_is_told_so_and_the_node_logs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with serving(tmp_path / "data") as node:
        async with sulina.connect(node.url) as client:
            await client.admin.create_topic("/default/orders")
        monkeypatch.setattr(websocket, "PROTOCOL", "protocol=2")
        async with sulina.connect(node.url, options=ClientOptions(timeout_seconds=5)) as newer:
            with pytest.raises(NewerFormat) as refused:
                await newer.admin.topics()
        assert "session protocol 2" in str(refused.value)
        assert (refused.value.format, refused.value.newest) == (2, 1)
        assert any("session_refused" in line and "session protocol 2" in line for line in node.log_lines())
        monkeypatch.setattr(websocket, "PROTOCOL", "")  # a client from before it was said
        async with sulina.connect(node.url) as client:
            assert [topic.topic for topic in await client.admin.topics()] == ["/default/orders"]


async def test_a_protocol_that_is_no_number_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with serving(tmp_path / "data") as node:
        monkeypatch.setattr(websocket, "PROTOCOL", "protocol=x")
        async with sulina.connect(node.url, options=ClientOptions(timeout_seconds=5)) as client:
            with pytest.raises(ProtocolError, match="protocol=x is not a number"):
                await client.admin.topics()
        assert WebSocketConnector(node.url).websocket_url.endswith("?protocol=x")
