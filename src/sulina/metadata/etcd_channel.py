"""Connections to etcd: several endpoints, of which one is in use; TLS; a user's token; when to retry, and where.

- Every attempt has a time limit, so that a silent endpoint leaves time for the others.
- After a failure the next endpoint is used. A connection that was silent for a whole attempt is closed as well: after a
  cut of the network it may be dead without a sign of it.
- Calls carry `hasleader`: a member that has lost its cluster refuses at once, and ends its watches.
"""

import asyncio
import contextlib
import logging
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Generic, TypeVar

from sulina.core.backoff import Backoff
from sulina.errors import MetadataFailed
from sulina.metadata.etcd_calls import (
    AUTHENTICATE,
    EtcdRefused,
    Method,
    Request,
    Response,
    Unanswered,
    failure_of,
    serializers,
)
from sulina.metadata.etcd_proto import etcd_pb2 as pb
from sulina.metadata.etcd_settings import EtcdTls
from sulina.metadata.quiet_grpc import grpc
from sulina.metadata.revision_floor import RevisionFloor

MESSAGE_BYTES_MAX = 64 << 20  # of one answer
PAUSE_SECONDS_MIN = 0.02  # between attempts, after all endpoints have failed
PAUSE_SECONDS_MAX = 0.5
RENEWALS_MAX = 3  # of a token, for one call: on a busy machine a token may have expired when it is used
TRY_SECONDS_MIN = 0.2

OPTIONS = [
    ("grpc.max_receive_message_length", MESSAGE_BYTES_MAX),
    ("grpc.max_send_message_length", -1),  # etcd has a limit of its own
    # Watches have no time limit: this is how a dead connection is noticed. etcd allows one ping in 5 s.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.enable_retries", 0),  # calls that may be repeated are repeated here
    ("grpc.use_local_subchannel_pool", 1),  # a new channel is a new connection
    ("grpc.enable_http_proxy", 0),
]

Result = TypeVar("Result")

_logger = logging.getLogger("sulina.metadata")


class Credentials:
    """A user, and the token that etcd issued for it. Without a user there is no token."""

    def __init__(self, user: str | None, password: str | None) -> None:
        self.user = user
        self._password = password or ""
        self.token: str | None = None  # "": etcd requires no token
        self._lock = asyncio.Lock()

    @property
    def metadata(self) -> list[tuple[str, str]]:
        """Metadata of every call."""
        return [("hasleader", "true"), *([("token", self.token)] if self.token else [])]

    async def ensure(self, endpoint: "EtcdEndpoint", timeout_seconds: float) -> str | None:
        """Get a token if one is needed. Return it.

        Raises:
            EtcdRefused: etcd refuses the user or password.
            Unanswered: there was no answer in time.
        """
        if self._is_missing():
            try:
                async with asyncio.timeout(timeout_seconds), self._lock:
                    if self._is_missing():
                        await self._authenticate(endpoint, timeout_seconds)
            except TimeoutError:
                raise Unanswered(f"no token from {endpoint.address} in {timeout_seconds:.1f} s") from None
        return self.token

    def discard(self, token: str | None) -> None:
        """Discard a token that is not valid any more."""
        if token == self.token:
            self.token = None

    async def _authenticate(self, endpoint: "EtcdEndpoint", timeout_seconds: float) -> None:
        request = pb.AuthenticateRequest(name=self.user, password=self._password)
        try:
            self.token = (await endpoint.call(AUTHENTICATE, request, timeout_seconds)).token
        except EtcdRefused as refused:
            if "authentication is not enabled" not in refused.details:
                raise
            self.token = ""

    def _is_missing(self) -> bool:
        return self.user is not None and self.token is None


class Stream(Generic[Request, Response]):
    """A call with messages in both directions, until it is cancelled."""

    def __init__(self, link: "_Link", method: Method[Request, Response], metadata: list[tuple[str, str]]) -> None:
        self._link = link
        self._call = link.stream(method)(metadata=metadata)
        link.streams.add(self)

    async def write(self, request: Request) -> None:
        """Send a message. An error shows in the next `read`."""
        with contextlib.suppress(asyncio.InvalidStateError):  # the stream has ended: the next read says why
            await answer_of(self._call.write(request))

    async def read(self) -> Response:
        """Return the next message.

        Raises:
            EtcdRefused: etcd refused the call.
            Unanswered: the stream has ended.
        """
        try:
            message = await answer_of(self._call.read())
        except Unanswered:
            if self in self._link.streams:
                self._link.lost()
            raise
        if message is grpc.aio.EOF:
            self._link.lost()
            raise Unanswered("etcd has ended the stream")
        self._link.heard()
        response: Response = message
        return response

    def cancel(self) -> None:
        """Cancel the stream. No error if it has ended."""
        self._link.streams.discard(self)
        self._call.cancel()


class _Link:
    """A channel of gRPC, its methods, and the time of the last answer on it."""

    def __init__(self, address: str, credentials: grpc.ChannelCredentials | None, lost: Callable[[], None]) -> None:
        """Create a channel. `lost` is called when a stream breaks: gRPC reconnects without a notice."""
        self.lost = lost
        if credentials is None:
            self.channel = grpc.aio.insecure_channel(address, options=OPTIONS)
        else:
            self.channel = grpc.aio.secure_channel(address, credentials, options=OPTIONS)
        self.heard_at = 0.0  # never
        self.streams: set[Stream[Any, Any]] = set()
        self._methods: dict[str, Any] = {}

    def unary(self, method: Method[Any, Any]) -> Any:
        if method.path not in self._methods:
            self._methods[method.path] = self.channel.unary_unary(method.path, **serializers(method))
        return self._methods[method.path]

    def stream(self, method: Method[Any, Any]) -> Any:
        if method.path not in self._methods:
            self._methods[method.path] = self.channel.stream_stream(method.path, **serializers(method))
        return self._methods[method.path]

    def heard(self) -> None:
        self.heard_at = asyncio.get_running_loop().time()


class EtcdEndpoint:
    """One member of etcd."""

    def __init__(
        self,
        address: str,
        channel_credentials: grpc.ChannelCredentials | None,
        credentials: Credentials,
        history: RevisionFloor,
        lost: Callable[[], None],
    ) -> None:
        self.address = address
        self._lost = lost
        self._history = history
        self._channel_credentials = channel_credentials
        self._credentials = credentials
        self._link: _Link | None = None
        self._closing: set[asyncio.Task[None]] = set()  # abandoned links

    async def call(self, method: Method[Request, Response], request: Request, timeout_seconds: float) -> Response:
        """Send one request, and return the response.

        Raises:
            EtcdRefused: etcd did nothing.
            Unanswered: the outcome is unknown.
            MetadataWentBack: the store shows an older state than before.
        """
        link = self._connect()
        began = asyncio.get_running_loop().time()
        floor, accepted = self._history.revision, self._history.accepted
        try:
            response: Response = await answer_of(
                link.unary(method)(request, timeout=timeout_seconds, metadata=self._credentials.metadata)
            )
        except EtcdRefused:
            link.heard()
            raise
        except Unanswered:
            self._replace_if_silent(link, began, timeout_seconds)
            raise
        link.heard()
        if self._history.accepted != accepted:
            raise Unanswered(f"{self.address} was asked before the cluster was recovered, and answered after it")
        # Responses of other methods may come from a member that lags behind.
        if isinstance(response, pb.RangeResponse | pb.TxnResponse) and self._history.went_back is None:
            self._history.seen(response.header.revision, floor=floor)
        return response

    async def open(
        self, method: Method[Request, Response], request: Request, timeout_seconds: float
    ) -> tuple[Stream[Request, Response], Response]:
        """Open a stream, which the caller must cancel. Return it with the first response.

        Raises:
            EtcdRefused: etcd refused the call.
            Unanswered: there was no answer in time.
        """
        link = self._connect()
        began = asyncio.get_running_loop().time()
        stream = Stream(link, method, self._credentials.metadata)
        try:
            async with asyncio.timeout(timeout_seconds):
                await stream.write(request)
                return stream, await stream.read()
        except TimeoutError:
            stream.cancel()
            self._replace_if_silent(link, began, timeout_seconds)
            raise Unanswered(f"no answer from {self.address} in {timeout_seconds:.1f} s") from None
        except BaseException:
            stream.cancel()
            raise

    async def exchange(self, method: Method[Request, Response], request: Request, timeout_seconds: float) -> Response:
        """Send one request on a stream of its own, and return the response.

        Raises:
            EtcdRefused: etcd refused the call.
            Unanswered: there was no answer in time.
        """
        stream, answer = await self.open(method, request, timeout_seconds)
        stream.cancel()
        return answer

    async def close(self) -> None:
        if self._link is not None:
            await self._link.channel.close()
        await asyncio.gather(*self._closing)

    def _connect(self) -> _Link:
        if self._link is None:
            self._link = _Link(self.address, self._channel_credentials, self._lost)
        return self._link

    def _replace_if_silent(self, link: _Link, began: float, timeout_seconds: float) -> None:
        """Use a new connection from now on, if this one was silent for a whole attempt. Its streams end; its calls may
        still be answered until their time is up."""
        now = asyncio.get_running_loop().time()
        if link is not self._link or now - began < timeout_seconds * 0.9 or link.heard_at >= began:
            return
        self._link = None
        self._lost()
        for stream in list(link.streams):
            stream.cancel()
        task = asyncio.get_running_loop().create_task(link.channel.close(timeout_seconds), name="etcd-give-up")
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)


class _TimeIsUp(Unanswered):
    """The time limit has passed before anything was sent, so no endpoint is at fault."""


class EtcdEndpoints:
    """All known members, and the one in use."""

    def __init__(
        self,
        addresses: Sequence[str],
        *,
        tls: EtcdTls | None,
        user: str | None,
        password: str | None,
        timeout_seconds: float,
    ) -> None:
        self.path = f"etcd{'' if tls is None else 's'}://{','.join(addresses)}"
        self.history = RevisionFloor()
        self.timeout_seconds = timeout_seconds
        self.try_seconds = max(timeout_seconds / (len(addresses) + 1), TRY_SECONDS_MIN)
        self.credentials = Credentials(user, password)
        channel_credentials = None
        if tls is not None:
            channel_credentials = grpc.ssl_channel_credentials(*tls.read())
        self._endpoints = [
            EtcdEndpoint(address, channel_credentials, self.credentials, self.history, self.connection_lost)
            for address in addresses
        ]
        random.shuffle(self._endpoints)  # so that clients spread over the members
        self.current = 0  # index of the endpoint in use
        self._failing_since: float | None = None
        self._losses, self._confirmed = 0, 0  # lost connections: in all, and at the last confirmation of the store
        self._confirming = asyncio.Lock()

    @property
    def members(self) -> Sequence[EtcdEndpoint]:
        """All members, for work that is needed on each."""
        return self._endpoints

    async def on(
        self, endpoint: EtcdEndpoint, work: Callable[[EtcdEndpoint, float], Awaitable[Result]], *, deadline: float
    ) -> Result:
        """Make one attempt, on this endpoint.

        Raises:
            EtcdRefused: etcd did nothing.
            Unanswered: the outcome is unknown.
        """
        return await self._with_token(endpoint, work, deadline)

    def deadline(self) -> float:
        """Return the deadline of a call that begins now, by the clock of the loop."""
        return asyncio.get_running_loop().time() + self.timeout_seconds

    async def call(
        self,
        method: Method[Request, Response],
        request: Request,
        *,
        deadline: float,
        even_if_went_back: bool = False,
    ) -> Response:
        """Make a call that may be repeated.

        Raises:
            EtcdRefused: etcd did nothing.
            MetadataFailed: there was no answer before the deadline.
            MetadataWentBack: the store shows an older state than before.
        """
        return await self.repeat(
            lambda endpoint, seconds: endpoint.call(method, request, seconds),
            deadline=deadline,
            even_if_went_back=even_if_went_back,
        )

    async def repeat(
        self,
        work: Callable[[EtcdEndpoint, float], Awaitable[Result]],
        *,
        deadline: float,
        even_if_went_back: bool = False,
    ) -> Result:
        """Repeat `work` until there is an answer.

        Raises:
            EtcdRefused: etcd did nothing.
            MetadataFailed: there was no answer before the deadline.
            MetadataWentBack: the store shows an older state than before.
        """
        loop = asyncio.get_running_loop()
        tries, backoff = 0, Backoff(PAUSE_SECONDS_MIN, PAUSE_SECONDS_MAX, random.random)
        cause: Unanswered | None = None
        while True:
            accepted = self.history.accepted
            try:
                result = await self.once(work, deadline=deadline, even_if_went_back=even_if_went_back)
                if not even_if_went_back:
                    await self.believe(deadline=deadline)
                    if self.history.accepted != accepted:
                        raise Unanswered("the cluster was recovered after the answer had come")
                return result
            except Unanswered as failure:
                tries += 1
                cause = failure if cause is None or not isinstance(failure, _TimeIsUp) else cause
                left_seconds = deadline - loop.time()
                if left_seconds <= 0:
                    raise MetadataFailed(path=self.path, cause=cause) from cause
            if tries % len(self._endpoints) == 0:
                await asyncio.sleep(min(backoff.next(), left_seconds))

    async def once(
        self,
        work: Callable[[EtcdEndpoint, float], Awaitable[Result]],
        *,
        deadline: float,
        even_if_went_back: bool = False,
    ) -> Result:
        """Make one attempt, on the endpoint in use.

        Raises:
            EtcdRefused: etcd did nothing.
            Unanswered: the outcome is unknown; the next attempt is on another endpoint.
            MetadataWentBack: the store shows an older state than it has shown before.
        """
        if not even_if_went_back:
            self.history.check()
        endpoint = self._endpoints[self.current]
        try:
            result = await self._with_token(endpoint, work, deadline)
        except _TimeIsUp:
            raise
        except Unanswered as failure:
            self._leave(endpoint, failure)
            raise
        self._reached(endpoint)
        return result

    def connection_lost(self) -> None:
        """Note that the next answer may come from another store: it is confirmed before it is used."""
        self._losses += 1

    async def believe(self, *, deadline: float) -> None:
        """Return if all answers so far came from the same store as before, even where it was away.

        A store that was restored to an older state may be at a higher revision, which no answer shows. Calls that wait
        share one confirmation.

        Raises:
            MetadataWentBack: it is another store, or another answer has shown meanwhile that it went back.
            Unanswered: it cannot be found out in time.
        """
        self.history.check()
        wanted = self._losses
        try:
            if self._confirmed < wanted:
                async with asyncio.timeout_at(deadline), self._confirming:
                    if self._confirmed < wanted:
                        losses = self._losses
                        await self.history.confirm()
                        self._confirmed = losses
        except (MetadataFailed, TimeoutError) as error:
            raise Unanswered(f"it is not known whether this is the same store as before: {error}") from error
        self.history.check()

    async def close(self) -> None:
        await asyncio.gather(*(endpoint.close() for endpoint in self._endpoints))

    async def _with_token(
        self, endpoint: EtcdEndpoint, work: Callable[[EtcdEndpoint, float], Awaitable[Result]], deadline: float
    ) -> Result:
        renewals = 0
        while True:
            token = await self.credentials.ensure(endpoint, self._seconds_left(deadline))
            try:
                return await work(endpoint, self._seconds_left(deadline))
            except EtcdRefused as refused:
                if not self.may_renew(refused) or renewals == RENEWALS_MAX:
                    raise
            self.credentials.discard(token)
            renewals += 1

    def may_renew(self, refused: EtcdRefused) -> bool:
        """Tell whether a call was refused only for its token, and a new one can be had."""
        return self.credentials.user is not None and refused.wants_token

    def _seconds_left(self, deadline: float) -> float:
        """Return the time for one attempt, or raise Unanswered if no time is left."""
        seconds = min(deadline - asyncio.get_running_loop().time(), self.try_seconds)
        if seconds <= 0:
            raise _TimeIsUp(f"the time limit of {self.timeout_seconds:g} s has passed")
        return seconds

    def _leave(self, endpoint: EtcdEndpoint, failure: Unanswered) -> None:
        self.connection_lost()
        if self._endpoints[self.current] is endpoint:
            self.current = (self.current + 1) % len(self._endpoints)
        if self._failing_since is None:
            self._failing_since = asyncio.get_running_loop().time()
            _logger.warning("etcd_unanswered endpoint=%s error=%s", endpoint.address, failure)

    def _reached(self, endpoint: EtcdEndpoint) -> None:
        if self._failing_since is not None:
            seconds = asyncio.get_running_loop().time() - self._failing_since
            self._failing_since = None
            _logger.info("etcd_answered endpoint=%s after_seconds=%.3f", endpoint.address, seconds)


async def answer_of(call: Awaitable[Any]) -> Any:
    """Return the result of a call of gRPC.

    Raises:
        EtcdRefused: etcd did nothing.
        Unanswered: the outcome is unknown.
    """
    try:
        return await call
    except grpc.aio.AioRpcError as error:
        raise failure_of(error) from None
    except asyncio.CancelledError:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            raise
        # gRPC raises this when the call was cancelled, not the task that waits for it.
        raise Unanswered("the connection was closed because it was silent") from None
