"""The batching producer for threads. Nothing is done here that `batching_producer` does not do."""

from types import TracebackType
from typing import Self

from sulina.client.batching_producer import BatchingProducer, ProducerReport, Receipt, Rest
from sulina.client.loop_thread import Run
from sulina.client.message import HeadersLike, Message
from sulina.client.publish_ack import PublishAck


class SyncReceipt:
    """For one message."""

    def __init__(self, receipt: Receipt, run: Run) -> None:
        self._receipt = receipt
        self._run = run

    @property
    def message(self) -> Message:
        """As it is stored."""
        return self._receipt.message

    @property
    def is_done(self) -> bool:
        """Whether its outcome is known."""
        return self._receipt.is_done

    def ack(self) -> PublishAck:
        """Wait for its ack; rejects are acks, faults of the system raise."""

        if not self._receipt.is_done:
            self._run(self._receipt.wait())
        return self._receipt.result()

    def cancel(self) -> bool:
        """Do not publish it. False: it is on its way, or its outcome is known."""

        async def cancel() -> bool:
            return self._receipt.cancel()

        return bool(self._run(cancel()))


class SyncBatchingProducer:
    """`with client.batching_producer(topic) as producer:`. Any thread may produce."""

    def __init__(self, producer: BatchingProducer, run: Run) -> None:
        self._producer = producer
        self._run = run

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop(Rest.SEND if error is None else Rest.DISCARD)

    @property
    def waiting(self) -> int:
        """Messages that are not on their way yet."""
        return self._producer.waiting

    def report(self) -> ProducerReport:
        """What became of everything so far."""
        return self._producer.report()

    def produce(
        self,
        value: object,
        *,
        key: bytes | str | None = None,
        headers: HeadersLike | None = None,
        timestamp_ms: int | None = None,
    ) -> SyncReceipt:
        """Take a message, or a value, to be published with others. ProducerStopped."""

        async def produce() -> Receipt:
            return self._producer.produce(value, key=key, headers=headers, timestamp_ms=timestamp_ms)

        return SyncReceipt(self._run(produce()), self._run)

    def wait_room(self) -> None:
        """Return when there is room for a message. ProducerStopped."""
        self._run(self._producer.wait_room())

    def flush(self) -> None:
        """Send what waits now; return when the outcome of everything that was produced before is known."""
        self._run(self._producer.flush())

    def stop(self, rest: Rest = Rest.SEND) -> ProducerReport:
        """Take no more; send what waits, or discard it, and say what became of everything."""
        return self._run(self._producer.stop(rest))  # type: ignore[no-any-return]
