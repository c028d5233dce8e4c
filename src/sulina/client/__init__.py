"""The Python client: publish, consume, subscribe and administer, against a node elsewhere or in this process."""

from sulina.client.batching_producer import BatchingProducer, OnFailure, ProducerReport, Receipt, Rest
from sulina.client.client import Client
from sulina.client.connect import Connecting, connecting
from sulina.client.connection import Connection, Connector
from sulina.client.message import Delivered, Message, Received
from sulina.client.options import ClientOptions
from sulina.client.publish_ack import PublishAck, PublishStatus, RejectReason
from sulina.client.reader import Reader
from sulina.client.subscription import Subscription
from sulina.client.sync import SyncClient, SyncDelivered, SyncReader, SyncSubscription
from sulina.client.sync_batching import SyncBatchingProducer, SyncReceipt
from sulina.client.websocket import WebSocketConnector
from sulina.core.batching import BatchingRules

__all__ = [
    "BatchingProducer",
    "BatchingRules",
    "Client",
    "ClientOptions",
    "Connecting",
    "Connection",
    "Connector",
    "Delivered",
    "Message",
    "OnFailure",
    "ProducerReport",
    "PublishAck",
    "PublishStatus",
    "Reader",
    "Receipt",
    "Received",
    "RejectReason",
    "Rest",
    "Subscription",
    "SyncBatchingProducer",
    "SyncClient",
    "SyncDelivered",
    "SyncReader",
    "SyncReceipt",
    "SyncSubscription",
    "WebSocketConnector",
    "connecting",
]
