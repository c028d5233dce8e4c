"""The Python client: publish, read, consume, subscribe and administer, against a node elsewhere or in this process."""

from sulina.client.admin import Admin
from sulina.client.batching_rules import BatchingRules
from sulina.client.client import Client
from sulina.client.connection import Connection, Connector
from sulina.client.consumer import Consumer
from sulina.client.events import Events
from sulina.client.handling import Handler
from sulina.client.identity import IdentitySubscriber
from sulina.client.message import Message, Record
from sulina.client.options import ClientOptions
from sulina.client.producer import OnFailure, Producer, ProducerReport, Receipt, Rest
from sulina.client.publish_ack import PublishAck, PublishPart, PublishStatus, RejectedPublishWarning, SplitFailed
from sulina.client.reader import Reader
from sulina.client.serialization import SerializationRegistry
from sulina.client.subscriber import Subscriber
from sulina.client.sync import (
    SyncAdmin,
    SyncClient,
    SyncConsumer,
    SyncEvents,
    SyncProducer,
    SyncReader,
    SyncReceipt,
    SyncSubscriber,
)
from sulina.client.websocket import WebSocketConnector
from sulina.core.delivery.pubsub import DeliveryPolicy, PartitionBehavior, PublishOptions
from sulina.core.delivery.rejects import RejectReason

__all__ = [
    "Admin",
    "BatchingRules",
    "Client",
    "ClientOptions",
    "Connection",
    "Connector",
    "Consumer",
    "DeliveryPolicy",
    "Events",
    "Handler",
    "IdentitySubscriber",
    "Message",
    "OnFailure",
    "PartitionBehavior",
    "Producer",
    "ProducerReport",
    "PublishAck",
    "PublishOptions",
    "PublishPart",
    "PublishStatus",
    "Reader",
    "Receipt",
    "Record",
    "RejectReason",
    "RejectedPublishWarning",
    "Rest",
    "SerializationRegistry",
    "SplitFailed",
    "Subscriber",
    "SyncAdmin",
    "SyncClient",
    "SyncConsumer",
    "SyncEvents",
    "SyncProducer",
    "SyncReader",
    "SyncReceipt",
    "SyncSubscriber",
    "WebSocketConnector",
]
