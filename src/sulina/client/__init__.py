"""The Python client: publish, consume, subscribe and administer, against a node elsewhere or in this process."""

from sulina.client.batching_producer import BatchingProducer, OnFailure, ProducerReport, Receipt, Rest
from sulina.client.batching_rules import BatchingRules
from sulina.client.client import Client
from sulina.client.connect import Connecting, connecting
from sulina.client.connection import Connection, Connector
from sulina.client.events import Events
from sulina.client.handling import Handler
from sulina.client.identity import IdentitySubscriber
from sulina.client.message import Delivered, Message, PubSubMessage, Received
from sulina.client.options import ClientOptions
from sulina.client.publish_ack import PublishAck, PublishPart, PublishStatus, SplitFailed
from sulina.client.pubsub import PubSub, TopicPublisher
from sulina.client.reader import Reader
from sulina.client.serialization import SerializationRegistry
from sulina.client.subscriber import Subscriber
from sulina.client.subscription import Subscription
from sulina.client.sync import SyncClient, SyncDelivered, SyncReader, SyncSubscription
from sulina.client.sync_batching import SyncBatchingProducer, SyncReceipt
from sulina.client.sync_pubsub import SyncEvents, SyncPubSub, SyncSubscriber, SyncTopicPublisher
from sulina.client.websocket import WebSocketConnector
from sulina.core.delivery.pubsub import DeliveryPolicy, PartitionBehavior, PublishOptions
from sulina.core.delivery.rejects import RejectReason

__all__ = [
    "BatchingProducer",
    "BatchingRules",
    "Client",
    "ClientOptions",
    "Connecting",
    "Connection",
    "Connector",
    "Delivered",
    "DeliveryPolicy",
    "Events",
    "Handler",
    "IdentitySubscriber",
    "Message",
    "OnFailure",
    "PartitionBehavior",
    "ProducerReport",
    "PubSub",
    "PubSubMessage",
    "PublishAck",
    "PublishOptions",
    "PublishPart",
    "PublishStatus",
    "Reader",
    "Receipt",
    "Received",
    "RejectReason",
    "Rest",
    "SerializationRegistry",
    "SplitFailed",
    "Subscriber",
    "Subscription",
    "SyncBatchingProducer",
    "SyncClient",
    "SyncDelivered",
    "SyncEvents",
    "SyncPubSub",
    "SyncReader",
    "SyncReceipt",
    "SyncSubscriber",
    "SyncSubscription",
    "SyncTopicPublisher",
    "TopicPublisher",
    "WebSocketConnector",
    "connecting",
]
