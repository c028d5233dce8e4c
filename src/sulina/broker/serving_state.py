"""Whether a broker takes requests: it starts, then it is ready, then it stops."""

from sulina.errors import NotServing


class ServingState:
    """The phase of a broker's life, shared by its parts."""

    def __init__(self) -> None:
        self.phase = "starting"

    @property
    def is_ready(self) -> bool:
        """Return whether the broker takes requests."""
        return self.phase == "ready"

    def begin(self) -> None:
        """Take requests from now on."""
        self.phase = "ready"

    def end(self) -> None:
        """Refuse new requests from now on."""
        self.phase = "stopping"

    def check(self) -> None:
        """Check that the broker takes requests.

        Raises:
            NotServing: it starts or stops.
        """
        if not self.is_ready:
            raise NotServing(reason=f"it is {self.phase}")
