"""The identity under which a task of Spark publishes to a partition. Pure: the same task has the same one for ever.

The log knows a producer by its id, remembers its newest epoch, and within that how many records it has written: the
next one must have the next sequence. So a task is told apart from itself like this:

- The **producer id** stands for writer (a query, or the option `txn`), task, topic and partition. It is one entry in
  the memory of a log, however many batches there are.
- The **producer epoch** is the number of the batch. Spark begins a batch when the one before is done, so a log that has
  seen a later batch refuses an older one: a task that was thought dead adds nothing after it. Epochs have 15 bits:
  every 32,768 batches another id follows.
- The **sequence** of a record is the number of records of the same task, batch and partition before it. It is never
  stored and never asked for: a task that is run again counts to the same numbers, if its rows come in the same order.
"""

from dataclasses import dataclass
from hashlib import sha256

EPOCHS = 1 << 15
SEQUENCES = 1 << 31
_HIGH_BIT = 1 << 62  # away from ids that are counted up


@dataclass(frozen=True, slots=True)
class TaskOrigin:
    """The origin of a task's records, as record batches carry it."""

    producer_id: int
    epoch: int


def task_origin(writer: str, batch: int, task: int, topic: str, partition: int) -> TaskOrigin:
    """Return the identity of one task of one batch in one partition of a topic."""
    lap, epoch = divmod(batch, EPOCHS)
    name = "\0".join(("spark", writer, str(lap), str(task), topic, str(partition)))
    number = int.from_bytes(sha256(name.encode()).digest()[:8], "big")
    return TaskOrigin(_HIGH_BIT | (number & (_HIGH_BIT - 1)), epoch)
