"""What callers give, checked before it is sent: a frame of another shape would cost everybody the connection."""

from typing import TypeVar

import msgspec

from sulina.core.log.position import Position
from sulina.errors import InvalidName, InvalidSettings
from sulina.json_values import convert_to
from sulina.types import TopicName

TEXT_LENGTH_MAX = 500
NUMBER_MAX = 2**63 - 1
SECONDS_MAX = 24 * 3600

TopicLike = str | TopicName
PositionLike = str | Position
T = TypeVar("T")


def checked(value: object, kind: type[T]) -> T:
    """Return a setting that was given as such, or as plain values.

    Raises:
        InvalidSettings: it is not valid.
    """
    try:
        return value if isinstance(value, kind) else convert_to(value, kind)
    except msgspec.ValidationError as error:
        raise InvalidSettings(str(error)) from None


def checked_text(what: str, text: object) -> str:
    """Return a short text.

    Raises:
        InvalidSettings: it is not text, or too long.
    """
    if not isinstance(text, str) or len(text) > TEXT_LENGTH_MAX:
        raise InvalidSettings(f"{what} must be text of at most {TEXT_LENGTH_MAX} characters, not {text!r:.60}")
    try:
        text.encode()
    except UnicodeEncodeError as error:  # a lone surrogate
        raise InvalidSettings(f"{what} is not text: {error}") from None
    return text


def checked_number(what: str, number: object) -> int:
    """Return an offset, a version or a partition.

    Raises:
        InvalidSettings: it is not a number of 64 bits.
    """
    if not isinstance(number, int) or not -NUMBER_MAX <= number <= NUMBER_MAX:
        raise InvalidSettings(f"{what} must be a number of 64 bits, not {number!r:.60}")
    return number


def checked_seconds(what: str, seconds: object) -> float:
    """Return a number of seconds to wait.

    Raises:
        InvalidSettings: it is not a number from 0 to a day.
    """
    if not isinstance(seconds, int | float) or not 0 <= seconds <= SECONDS_MAX:
        raise InvalidSettings(f"{what} must be seconds, from 0 to {SECONDS_MAX}, not {seconds!r:.60}")
    return seconds


def topic_text(topic: TopicLike) -> str:
    """Return the whole name of a topic as text, `/namespace/topic`.

    Raises:
        InvalidName: it is not valid.
    """
    return str(topic_of(topic))


def topic_of(topic: object) -> TopicName:
    """Return the name of a topic; one without a namespace is in `default`.

    Raises:
        InvalidName: it is not valid.
    """
    if isinstance(topic, TopicName):
        return topic
    if not isinstance(topic, str):
        raise InvalidName(kind="topic", name=f"{topic!r:.60}", pattern="/namespace/topic")
    return TopicName.of(topic)


def position_text(position: PositionLike) -> str:
    """Return a position as text.

    Raises:
        InvalidSettings: it is not valid.
    """
    return str(position if isinstance(position, Position) else Position.parse(position))
