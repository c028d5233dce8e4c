"""Every step of a micro-batch that somebody could see, by name, so that a test can kill the driver at each.

A step tells what has just been done, and to what: a table or a topic. Where `SULINA_SPARK_STOP_AT` names it, whoever
comes to it for the n-th time leaves a mark in the folder `SULINA_SPARK_MARKS` and stops, for good: whoever waits for
it kills the driver with all its processes. To end itself would not do: most steps are done by Python workers, which
Spark replaces. They do not know of each other either, so they count by their marks.
"""

import os
import signal
from enum import StrEnum

STOP_AT = "SULINA_SPARK_STOP_AT"  # step, step@table or step@topic; :n for the n-th time
MARKS = "SULINA_SPARK_MARKS"


class Step(StrEnum):
    """What has just been done."""

    SOURCE_ENDED = "source.ended"  # where the batch ends is decided; Spark has not written it down
    SOURCE_PLANNED = "source.planned"  # Spark has; no task has begun

    FILES_WRITTEN = "files.written"  # those of one task; nobody knows of them
    COMMIT_BEGUN = "commit.begun"  # the driver knows the files of all tasks; the table does not
    COMMIT_DONE = "commit.done"  # the table has them; Spark does not know it
    COMMIT_FOUND = "commit.found"  # instead: the table had them from an earlier attempt

    PUBLISH_DONE = "publish.done"  # the rows of one task are in a partition of the topic
    PUBLISH_ALL_DONE = "publish.all_done"  # those of all tasks; Spark has not noted the batch


def step(name: Step, of: str = "") -> None:
    """Tell that a step was done to a table or a topic, by its path."""
    wanted = os.environ.get(STOP_AT)
    if wanted is None:
        return
    place, _, count = wanted.partition(":")
    wanted_name, _, wanted_of = place.partition("@")
    if name == wanted_name and wanted_of in ("", of.rsplit("/", 1)[-1]) and _mark() == int(count or 1):
        os.kill(os.getpid(), signal.SIGSTOP)


def _mark() -> int:
    """Leave one more mark; how many there are."""
    number = 1
    while True:
        path = os.path.join(os.environ[MARKS], str(number))
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            number += 1
        else:
            return number
