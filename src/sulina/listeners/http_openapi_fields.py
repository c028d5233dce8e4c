"""What the fields of requests and answers mean, and what JSON Schema alone would not say about them."""

from typing import Any

from sulina.listeners.http_problem import all_codes

POSITION = (
    r"^(earliest|latest|(offset|version|timestamp):(0|[1-9][0-9]{0,17})"
    r"|offset:(0|[1-9][0-9]{0,17})@(0|[1-9][0-9]{0,17})"
    r"|timestamp:(19[7-9]|2[0-9]{2})[0-9]-[0-9T:.+Z-]+)$"
)
PARTITION = r"^(0|[1-9][0-9]{0,2}|10[01][0-9]|102[0-3])$"
BASE64 = r"^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$"

# By type and field.
FIELDS: dict[tuple[str, str], str] = {
    ("Published", "partition"): "The partition the records went to.",
    ("Published", "base_offset"): "The offset of the first record; the others follow without a gap.",
    ("Published", "count"): "How many records were appended.",
    ("Published", "version"): "The commit that made them visible, all at once.",
    ("Published", "ack"): "What has happened to them: `local` means durable on the owner's disk.",
    ("PublishIn", "records"): "Appended in this order, together or not at all.",
    ("PublishIn", "txn_id"): "Your name for this publish. Sent again, it gets the first answer and adds nothing.",
    ("PublishIn", "expected_version"): "Append only if the partition they go to is still at this version.",
    ("PublishIn", "schema_id"): "The schema the records are of; refused if the topic has another.",
    ("PublishIn", "delivery_policy"): "For this publish, to a topic that keeps nothing; absent: as the topic's policy.",
    ("PublishIn", "partition_behavior"): "For this publish, to a topic that keeps nothing; absent: as its policy says.",
    ("RecordIn", "value"): "Text; null deletes the key in tables made from the topic.",
    ("RecordIn", "value_b64"): "Bytes, in base64, instead of `value`.",
    ("RecordIn", "key"): "Text. Records with the same key go to the same partition.",
    ("RecordIn", "key_b64"): "Bytes, in base64, instead of `key`.",
    ("RecordIn", "headers"): "By name; an array of values for a name that repeats.",
    ("RecordIn", "headers_b64"): "Headers whose values are bytes, in base64; they come after `headers`.",
    ("RecordIn", "timestamp"): "Milliseconds since 1970, UTC; absent: now.",
    ("RecordOut", "offset"): "Its place in the partition.",
    ("RecordOut", "timestamp"): "Milliseconds since 1970, UTC.",
    ("RecordOut", "key"): "Text, null when there is none.",
    ("RecordOut", "key_b64"): "Instead of `key` when it is not UTF-8.",
    ("RecordOut", "value"): "Text, null when it deletes its key.",
    ("RecordOut", "value_b64"): "Instead of `value` when it is not UTF-8.",
    ("RecordOut", "headers"): "By name; an array of values for a name that repeats.",
    ("RecordOut", "headers_b64"): "Instead of `headers` when one of them is not UTF-8.",
    ("RecordsOut", "records"): "In the order of their offsets.",
    ("RecordsOut", "next_offset"): "Read on from here.",
    ("RecordsOut", "version"): "The version of the log that was read.",
    ("RecordsOut", "end_offset"): "Where the log ends at that version: one past the last record.",
    ("RecordsOut", "epoch"): "The epoch of the log that was read: pass it as `epoch` to read on.",
    ("TopicSettings", "partitions"): "How many; for ever.",
    ("TopicSettings", "delivery"): "`reliable` is a log; `non_reliable` passes records on to who is attached.",
    ("TopicSettings", "policy"): "What differs from the namespace's policy.",
    ("TopicSettings", "schema"): "What the values are; for ever once there is data.",
    ("Policy", "ack"): "When a publish is acknowledged.",
    ("Policy", "retention_bytes"): "Keep about so many bytes; the oldest segments go first. Absent: all.",
    ("Policy", "retention_seconds"): "Keep records for so long. Absent: for ever.",
    ("Policy", "segment_bytes"): "When a segment is full.",
    ("Policy", "segment_seconds"): "When a segment is old enough to be sealed.",
    ("Policy", "batch_bytes_max"): "The largest batch.",
    ("Policy", "ack_timeout_seconds"): "How long a consumer has to ack a record before it is delivered again.",
    ("Policy", "redelivery_delay_seconds"): "How long a nacked record waits before it is delivered again.",
    ("Policy", "deliveries_max"): "How often a record is delivered before it goes to the dead-letter topic.",
    ("Policy", "dead_letter"): "The topic for those, `/namespace/topic`. Absent: `{topic}.dead-letter`.",
    ("Policy", "txn_id_seconds"): "A `txn_id` that comes again within this time gets the first answer.",
    ("Policy", "txn_ids_max"): "How many of them a partition remembers. Past it new ones are refused for the moment.",
    ("Policy", "delivery_policy"): "Of a topic that keeps nothing: whether what may not have arrived is sent again.",
    ("Policy", "partition_behavior"): "Of a topic that keeps nothing: what becomes of what is for a node out of reach.",
    ("Policy", "archive_bytes"): "What is not archived goes to the object store at this size.",
    ("Policy", "archive_seconds"): "What is not archived goes to the object store at this age.",
    ("Policy", "local_retention_bytes"): "Keep so much on disk of what is archived. Absent: all.",
    ("Policy", "local_retention_seconds"): "Keep on disk for so long what is archived. Absent: for ever.",
    ("Policy", "validate"): "Check values by the schema before they are accepted: always, or never. Absent: those of "
    "publishes that do not name the topic's schema.",
    ("Schema", "kind"): "How to read values.",
    ("Schema", "definition"): "A JSON Schema, an Avro schema, or an Arrow schema (IPC, base64); bytes have none.",
    ("TopicInfo", "topic"): "`/namespace/topic`",
    ("TopicInfo", "settings"): "As they were given.",
    ("TopicInfo", "policy"): "As it works, with what the namespace and the system add.",
    ("TopicInfo", "schema_id"): "Equal for equal schemas.",
    ("TopicInfo", "topic_id"): "No other topic's, also not of one that had the same name.",
    ("TopicInfo", "state"): "Whether it takes records.",
    ("TopicInfo", "subscriptions"): "Their names.",
    ("TopicPage", "topics"): "In the order of their names.",
    ("TopicPage", "next"): "What to give as `after` for the next page; null at the end.",
    ("PartitionInfo", "topic"): "`/namespace/topic`",
    ("PartitionInfo", "partition"): "Its number.",
    ("PartitionInfo", "state"): "Whether it takes records.",
    ("PartitionInfo", "epoch"): "How often its owner has changed.",
    ("PartitionInfo", "version"): "Its newest commit.",
    ("PartitionInfo", "start_offset"): "The oldest record that is kept.",
    ("PartitionInfo", "end_offset"): "One past the newest record.",
    ("PartitionInfo", "size_bytes"): "Of all its segments.",
    ("PartitionInfo", "segments"): "Its files.",
    ("PartitionInfo", "error"): "Why it takes no records, if it does not.",
    ("PartitionInfo", "archived_offset"): "Everything before it is in the archive; null: there is no archive.",
    ("PartitionInfo", "is_stale"): "Another broker may have more: `stale` was asked for.",
    ("SegmentInfo", "name"): "Of the file.",
    ("SegmentInfo", "start_offset"): "Its first record.",
    ("SegmentInfo", "end_offset"): "One past its last record.",
    ("SegmentInfo", "size_bytes"): "Of its committed bytes.",
    ("SegmentInfo", "is_sealed"): "Whether it is final.",
    ("NamespaceInfo", "namespace"): "Its name.",
    ("NamespaceInfo", "policy"): "What its topics inherit.",
    ("NamespaceInfo", "topics"): "How many topics it has.",
    ("NamespacesOut", "namespaces"): "In the order of their names.",
    ("SubscriptionsOut", "subscriptions"): "In the order of their names.",
    ("SubscriptionIn", "kind"): "Who among its consumers gets a record. To create.",
    ("SubscriptionIn", "start"): (
        "Where it begins: `earliest`, `latest`, `offset:N`, `version:N`, `timestamp:MS` or `timestamp:ISO`. To create."
    ),
    ("SubscriptionIn", "seek"): "Where it goes on from now, in the words of `start`. For one that exists.",
    ("SubscriptionIn", "partition"): "The only partition to seek in; absent: all.",
    ("SubscriptionInfo", "topic"): "`/namespace/topic`",
    ("SubscriptionInfo", "subscription"): "Its name.",
    ("SubscriptionInfo", "kind"): "Who among its consumers gets a record.",
    ("SubscriptionInfo", "start"): "Where it began.",
    ("SubscriptionInfo", "consumers"): "Who is attached now.",
    ("SubscriptionInfo", "cursors"): "How far it has come, by partition.",
    ("SubscriptionInfo", "lag"): "Records that are not acked, in all partitions.",
    ("CursorInfo", "partition"): "Its number.",
    ("CursorInfo", "offset"): "Everything before it is acked.",
    ("CursorInfo", "acked"): "What is acked beyond it, as ranges `[start, end)`; the first thousand.",
    ("CursorInfo", "end_offset"): "One past the newest record.",
    ("CursorInfo", "lag"): "Records that are not acked.",
    ("CursorInfo", "in_flight"): "Records that consumers have and have not acked.",
    ("ProducersOut", "producers"): "By name, then by broker.",
    ("ProducerInfo", "producer"): "Its name: the client's, or that of a batching producer.",
    ("ProducerInfo", "broker_id"): "The broker that it is connected to.",
    ("ProducerInfo", "since_ms"): "When it first published there, in milliseconds since 1970.",
    ("ProducerInfo", "is_connected"): "False: that broker is gone, and the producer has not come back elsewhere.",
    ("SubscribersOut", "subscribers"): "Of one partition after the other, by node.",
    ("SubscriberInfo", "node"): "The broker that it is attached to.",
    ("SubscriberInfo", "handle"): "Its number there; no other ever has it.",
    ("SubscriberInfo", "name"): "As it calls itself.",
    ("SubscriberInfo", "status"): "`suspended` is sent nothing until it is tried again.",
    ("SubscriberInfo", "reason"): "Why it is suspended.",
    ("SubscriberInfo", "partition"): "Of which its owner says this.",
    ("SubscriberInfo", "offset"): "The next that it is sent; null: the topic keeps nothing.",
    ("PubSubMetrics", "topic"): "`/namespace/topic`; null: all of them.",
    ("PubSubMetrics", "accepted"): "Messages that were taken.",
    ("PubSubMetrics", "rejected"): "Publishes that were not, by reason.",
    ("PubSubMetrics", "delivered"): "Messages that subscribers have acked: one for two subscribers counts twice.",
    ("PubSubMetrics", "failed"): "Messages that subscribers did not take, by status.",
    ("PubSubMetrics", "batches"): "Batches that were sent to nodes, by the status of their reports.",
    ("PubSubMetrics", "redelivered"): "Messages that were sent again.",
    ("PubSubMetrics", "queued"): "Batches that wait for a node at this moment.",
    ("PubSubMetrics", "dropped"): "Messages that were left out for a node that could not be reached.",
    ("PubSubMetrics", "missed"): "Messages that went past subscribers while they were suspended.",
    ("PubSubMetrics", "active"): "Subscribers that are sent to.",
    ("PubSubMetrics", "suspended"): "Subscribers that are not, at this moment.",
    ("ReaderSettings", "positions"): "By partition: the next offset that it needs. Others stay where they are.",
    ("ReaderSettings", "expires_seconds"): "It counts until it has not been heard of for so long; at first 7 days.",
    ("ReaderSettings", "kind"): "What it is, in a word or two: `spark`, say.",
    ("ReaderSettings", "description"): "What it is for.",
    ("ReaderSettings", "force"): "Let it go back, to read again what it has read.",
    ("ReaderSettings", "epochs"): "By partition: the `epoch` of the answer in which everything before was read. "
    "If something of that is given up, retention keeps what follows, and the reader may go back to there.",
    ("ReaderInfo", "reader"): "Its name.",
    ("ReaderInfo", "topic"): "`/namespace/topic`",
    ("ReaderInfo", "kind"): "What it is, as it says.",
    ("ReaderInfo", "description"): "What it is for, as it says.",
    ("ReaderInfo", "expires_seconds"): "It counts until it has not been heard of for so long.",
    ("ReaderInfo", "updated_ms"): "When it was last heard of: milliseconds since 1970, UTC.",
    ("ReaderInfo", "is_expired"): "It holds nothing back, and is forgotten a day later.",
    ("ReaderInfo", "positions"): "Where it is, by partition.",
    ("ReaderInfo", "lag"): "Records that it has not come to; null where that of a partition is not known.",
    ("ReaderPositionInfo", "partition"): "Its number.",
    ("ReaderPositionInfo", "offset"): "The next record that it needs: retention keeps it, and all after it.",
    ("ReaderPositionInfo", "updated_ms"): "When it said so: milliseconds since 1970, UTC.",
    ("ReaderPositionInfo", "start_offset"): "The oldest record that is kept; null: another broker knows.",
    ("ReaderPositionInfo", "end_offset"): "One past the newest record, as this broker knows it; null: it does not.",
    ("ReaderPositionInfo", "lag"): "Records from `offset` to the end.",
    ("ReaderPage", "readers"): "In the order of their names.",
    ("ReaderPage", "next"): "What to give as `after` for the next page; null at the end.",
    ("CommitsOut", "commits"): "In the order of their versions.",
    ("CommitsOut", "next_version"): "Go on from here.",
    ("Commit", "version"): "Its number.",
    ("Commit", "timestamp"): "When it was written.",
    ("Commit", "txn_id"): "Its own id.",
    ("Commit", "log_ms"): "Milliseconds of the log's life, as its owners measured them; 0: of before they did.",
    ("Commit", "operations"): "What it did, in order.",
    ("Commit", "checkpoint_hint"): "Whether a checkpoint follows it.",
    ("Commit", "epoch"): "Of the owner that wrote it.",
    ("Commit", "start_offset"): "The oldest record after it.",
    ("Commit", "next_offset"): "One past the newest record after it.",
    ("Add", "type"): "Batches were appended.",
    ("Add", "origin_id"): "The producer id of the batches; -1: none.",
    ("Add", "origin_seq"): "Its sequence number for the first record.",
    ("Add", "origin_epoch"): "The epoch of the producer; -1: none.",
    ("Add", "offset_start"): "The first record.",
    ("Add", "offset_end"): "One past the last record.",
    ("Add", "segment"): "The file.",
    ("Add", "position"): "Where in the file the batches begin.",
    ("Add", "size"): "How many bytes they have.",
    ("Add", "timestamp_max"): "The newest timestamp of the records.",
    ("Add", "txn_id"): "As the publisher named it.",
    ("Add", "object"): "In an archive: the object that the slice lies in.",
    ("Add", "version_start"): "In an archive: the first version of the log that the slice has commits of.",
    ("Add", "version_end"): "In an archive: one past the last.",
    ("Add", "epoch"): "In an archive: of the owner that wrote the batches.",
    ("Add", "data_crc"): "In an archive: the CRC32C of the batches.",
    ("Add", "commits_size"): "In an archive: the bytes of the commits of the slice.",
    ("Add", "state"): "In an archive: the object with the state of the log at the end of the slice.",
    ("Remove", "type"): "The oldest segment went.",
    ("Remove", "segment"): "The file.",
    ("Remove", "offset_start"): "Its first record.",
    ("Remove", "offset_end"): "One past its last record.",
    ("Remove", "size"): "Its bytes.",
    ("Remove", "object"): "In an archive: the object of the slice.",
    ("Claim", "type"): "A new owner took over.",
    ("Claim", "epoch"): "Of the new owner.",
    ("Claim", "broker_id"): "The new owner.",
    ("Claim", "holder"): "In an archive: the data directory of the new owner.",
    ("Merge", "type"): "Slices of an archive became one; what the log holds is the same.",
    ("Merge", "first"): "The object of the first of them.",
    ("Merge", "count"): "How many.",
    ("Merge", "object"): "The object that has all of them.",
    ("Merge", "data_crc"): "The CRC32C of its batches.",
    ("Merge", "size"): "The bytes of its batches.",
    ("Merge", "commits_size"): "The bytes of its commits.",
    ("Seal", "type"): "A segment became final.",
    ("Seal", "segment"): "The file.",
    ("Seal", "offset_end"): "One past its last record.",
    ("Seal", "size"): "Its bytes.",
    ("NodeInfo", "broker_id"): "Its name.",
    ("NodeInfo", "version"): "Of the software.",
    ("NodeInfo", "is_ready"): "Whether it serves.",
    ("NodeInfo", "topics"): "How many it has.",
    ("NodeInfo", "connections"): "Open sessions.",
    ("NodeInfo", "uptime_seconds"): "Since it started.",
    ("NodeInfo", "objects"): "Where the archives are, for whoever may read them there; null: there are none.",
    ("NodeInfo", "objects_endpoint"): "Of that object store; null: the cloud's own.",
    ("NodeInfo", "store_id"): "Of its data directory; null: it is not part of a cluster.",
    ("NodeInfo", "disk_bytes"): "Of the file system that has the data directory.",
    ("NodeInfo", "disk_free_bytes"): "Of that, what is free.",
    ("NodeInfo", "troubles"): "What is not as it should be on this node: the first twenty of each kind.",
    ("NodeInfo", "trouble_counts"): "How many there are, by kind.",
    ("Trouble", "kind"): "The code of an error, such as `log_incomplete`, or `not_serving`, `cut_off`, `replaced`, "
    "`not_served`, `disk_full`, `log_stopped`, `consumer_late`, `directory_orphaned`, `directory_set_aside`.",
    ("Trouble", "what"): "What was found, in words.",
    ("Trouble", "topic"): "`/namespace/topic`; null: it is about the node.",
    ("Trouble", "partition"): "Its number; null: it is about all of them.",
    ("Placement", "topic"): "`/namespace/topic`",
    ("Placement", "topic_id"): "No other topic's, also not of one that had the same name.",
    ("Placement", "partitions"): "In their order.",
    ("Placement", "brokers"): "The URLs of all brokers that are there: ask one of them when an owner has gone.",
    ("PartitionPlacement", "partition"): "Its number.",
    ("PartitionPlacement", "state"): "`active` takes records, `draining` is leaving, `closed` waits for an owner, "
    "`recovering` waits for the broker that alone has all of it.",
    ("PartitionPlacement", "epoch"): "Of its owner; every change of owner raises it. -1: it never had one.",
    ("PartitionPlacement", "broker_id"): "Its owner; null: it has none at this moment.",
    ("PartitionPlacement", "url"): "Where its owner is; null: the node that answers, or nobody.",
    ("PartitionPlacement", "waits_for"): "The broker that alone has all of it, and is away.",
    ("BrokerInfo", "broker_id"): "Its name.",
    ("BrokerInfo", "url"): "Where it is; null while nobody knows.",
    ("BrokerInfo", "state"): "`active`, `draining`, or `unreachable`: its lease has run out.",
    ("BrokerInfo", "is_leader"): "Whether it assigns partitions.",
    ("BrokerInfo", "partitions"): "How many it owns.",
    ("BrokerInfo", "topics"): "Of how many topics.",
    ("BrokerInfo", "connections"): "Open sessions, as it last reported.",
    ("BrokerInfo", "published_bytes_per_second"): "What it takes, as it last reported.",
    ("BrokerInfo", "uptime_seconds"): "Since it started; null while it is away.",
    ("BrokerInfo", "clock_ahead_seconds"): "How far its clock is off; negative: behind the others; 0: about right.",
    ("UnloadInfo", "topic"): "`/namespace/topic`",
    ("UnloadInfo", "partition"): "Its number.",
    ("UnloadInfo", "step"): "How far it has come: `requested`, `quiesced`, `paused`, `sealed`, `unassigned`, `moved`.",
    ("UnloadInfo", "from_broker"): "The owner that it leaves.",
    ("UnloadInfo", "to_broker"): "Who is to have it; null: whoever has the least to do.",
    ("UnloadInfo", "error"): "Why the last attempt failed; it is tried again.",
    ("UnloadInfo", "given_up"): "The offsets `[start, end)` that only the lost broker had, as it last reported them.",
    ("UnloadInfo", "reported_seconds"): "How long ago the lost broker reported them; what it acknowledged since is "
    "given up too.",
    ("UnloadInfo", "lease_seconds"): "How long the lost broker may have gone on acknowledging after its last word.",
    ("UnloadInfo", "since_seconds"): "How long ago it was asked for.",
    ("WaitingPartition", "topic"): "`/namespace/topic`",
    ("WaitingPartition", "partition"): "Its number.",
    ("WaitingPartition", "since_seconds"): "For how long it has had no owner.",
    ("WaitingPartition", "waits_for"): "The broker that alone has all of it; null: any may have it.",
    ("UnloadIn", "force"): "Let attached consumers go. For a partition that is `recovering`: give up what only the "
    "lost broker has.",
    ("UnloadIn", "to"): "The broker that is to have it; absent: whoever has the least to do.",
    ("UnloadIn", "partition"): "Only this one; absent: all.",
    ("UnloadIn", "give_up"): "Go on without records that were reported and are missing (`log_incomplete`): they "
    "are lost for good.",
    ("UnloadsOut", "unloads"): "By partition.",
    ("BrokersOut", "brokers"): "In the order of their names.",
    ("ClusterInfo", "brokers"): "In the order of their names.",
    ("ClusterInfo", "leader"): "The broker that assigns partitions; null while there is none.",
    ("ClusterInfo", "topics"): "How many there are.",
    ("ClusterInfo", "partitions"): "Of all topics.",
    ("ClusterInfo", "unassigned"): "Partitions that wait for an owner.",
    ("ClusterInfo", "recovering"): "Those among them that wait for a broker that alone has all of them.",
    ("ClusterInfo", "unloads"): "What is on its way from one broker to another.",
    ("ClusterInfo", "metadata"): "How much room the metadata store has; null before the broker has asked it.",
    ("MetadataInfo", "is_full"): "Whether it has used up its quota: it takes no writes then, and nothing fails over.",
    ("MetadataInfo", "size_bytes"): "On disk, with what is free inside; null where it does not say.",
    ("MetadataInfo", "used_bytes"): "Without that; null where it does not say.",
    ("MetadataInfo", "quota_bytes"): "At which it is full; null where it does not say, as etcd before 3.6.",
    ("ClusterInfo", "waiting"): "Partitions without an owner: the first hundred, in the order of their names.",
    ("ClusterInfo", "is_stale"): "The broker that answers has lost touch with the metadata store: so it was before.",
    ("Rebalanced", "moves"): "What has been asked for; none when there is nothing to gain.",
}  # fmt: skip


def _problem(code: str, detail: str, **facts: Any) -> Any:
    known = next(known for known in all_codes() if known["code"] == code)
    return {**known, "type": f"/docs#{code}", "detail": detail, **facts}


# Of problems, by status.
EXAMPLES: dict[int, list[dict[str, Any]]] = {
    307: [
        _problem(
            "not_owner",
            "the node is not serving: partition 0 of /default/orders is served by broker b2 at http://10.0.0.2:8080",
            topic="/default/orders",
            partition=0,
            owner="b2",
            url="http://10.0.0.2:8080",
        )
    ],
    400: [
        _problem("malformed_body", "the body is not JSON: JSON is malformed: expected ':' (byte 9)"),
        _problem(
            "invalid_parameter", "offset must be a whole number from 0 to 9223372036854775807", parameter="offset"
        ),
    ],
    404: [_problem("topic_not_found", "there is no topic /default/orders", topic="/default/orders")],
    409: [_problem("version_conflict", "expected version 6, but the log is at 7", expected=6, current=7)],
    413: [_problem("body_too_large", "the body is over the limit of 33554432 bytes: send several requests")],
    416: [_problem("offset_out_of_range", "offset 3 is outside [100, 250)", offset=3, start=100, end=250)],
    422: [_problem("invalid_input", "Object contains unknown field `vlaue` - at `$.records[0]`")],
    429: [_problem("queue_full", "67108864 bytes wait to be committed, the limit is 67108864")],
    503: [_problem("not_yet", "version 12 is not there after 1.0 s: the log ends at offset 40, version 11")],
}


def refine(name: str, schema: dict[str, Any]) -> None:
    """Add to a schema, in place, what the types do not say."""
    if "description" in schema:
        schema["description"] = " ".join(schema["description"].split())
    for field, shape in schema.get("properties", {}).items():
        text = FIELDS.get((name, field))
        if text is not None:
            shape["description"] = text
    _add_patterns(schema)
    if name == "RecordIn":
        schema["oneOf"] = [{"required": ["value"]}, {"required": ["value_b64"]}]
        both = {"key": {"type": "string"}, "key_b64": {"type": "string"}}
        schema["not"] = {"required": ["key", "key_b64"], "properties": both}
    if name == "ReaderSettings":
        schema["required"] = ["positions"]
        schema["properties"]["positions"]["propertyNames"] = {"pattern": PARTITION}
        schema["properties"]["epochs"]["propertyNames"] = {"pattern": PARTITION}
        del schema["properties"]["positions"]["default"]
    if name == "SubscriptionIn":
        for field in ("start", "seek"):
            schema["properties"][field]["pattern"] = POSITION
        to_create = {"not": {"anyOf": [{"required": ["seek"]}, {"required": ["partition"]}]}}
        to_seek = {"required": ["seek"], "not": {"anyOf": [{"required": ["kind"]}, {"required": ["start"]}]}}
        schema["oneOf"] = [to_create, to_seek]


def _add_patterns(shape: Any) -> None:
    if isinstance(shape, dict):
        if shape.get("contentEncoding") == "base64":
            shape["pattern"] = BASE64
        for child in shape.values():
            _add_patterns(child)
    elif isinstance(shape, list):
        for child in shape:
            _add_patterns(child)
