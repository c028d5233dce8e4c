"""The setting `compress_checkpoints`, from a node down to its files."""

from pathlib import Path

import pytest

from sulina.broker.options import StorageOptions
from sulina.config import Settings
from sulina.core.records.record import StoredRecord
from sulina.core.topic import TopicSettings
from sulina.node import Node
from sulina.types import TopicName

ORDERS = TopicName.parse("/default/orders")


@pytest.mark.parametrize("compress", [True, False], ids=["compressed", "plain"])
async def test_a_node_compresses_checkpoints_if_told_to(compress: bool, tmp_path: Path) -> None:
    node = await Node.start(
        Settings(data=str(tmp_path), storage=StorageOptions(compress_checkpoints=compress)), listen=False
    )
    await node.broker.put_topic(ORDERS, TopicSettings())
    for number in range(11):
        await node.broker.publish_records(ORDERS, [StoredRecord(value=b"%d" % number)])
    await node.stop()
    [checkpoint] = tmp_path.rglob("*.checkpoint.json")
    assert checkpoint.read_bytes().startswith(b"\x1f\x8b" if compress else b'{"format":1,"version":10,')
    node = await Node.start(
        Settings(data=str(tmp_path), storage=StorageOptions(compress_checkpoints=not compress)), listen=False
    )
    assert (await node.broker.partition(ORDERS, 0)).end_offset == 11
    await node.stop()
