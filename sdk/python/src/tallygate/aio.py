"""The client for asyncio: like the package itself, with `await`."""

import asyncio
import os
import time
from http.client import HTTPException
from typing import Any, Iterable, List, Optional, cast

from ._core import (
    IDLE_MAX,
    OFFERS_CALL,
    RESPONSE_S,
    Answer,
    Attempts,
    Call,
    Item,
    Numbering,
    OfOneProcess,
    Reader,
    Requester,
    Response,
    SessionEnded,
    TallygateError,
    access_call,
    answer_of,
    end_of,
    offers_of,
    open_call,
    request_call,
    session_call,
    session_id_of,
    socket_path_of,
    state_of,
)

__all__ = ["Client", "Session", "connect"]


def connect(socket_path: Optional[str] = None, patience_s: float = 10.0) -> "Client":
    """Sends nothing before the first call. See tallygate.connect."""
    return Client(socket_path_of(socket_path), patience_s)


class Client:
    """Tasks of one loop can share it."""

    def __init__(self, socket_path: str, patience_s: float) -> None:
        self._socket_path = socket_path
        self._patience_s = patience_s
        # Each for one request at a time.
        self._idle: List[_Connection] = []
        # Without a socket, after many requests at a time: all programs of the device share the agent's sockets.
        self._resting: List[_Connection] = []

    async def access(self, instance_id: str, requester: Requester, items: Iterable[Item]) -> Answer:
        """Each item is granted or refused by itself. Raises TallygateError."""
        call = access_call(instance_id, requester, items)
        connection = self._take()
        try:
            return answer_of(await connection.once(call), call)
        finally:
            self._give(connection)

    async def offers(self) -> Any:
        """The items that can be requested now, as in the local API. Raises TallygateError."""
        connection = self._take()
        try:
            return (await connection.call(OFFERS_CALL)).read(offers_of)
        finally:
            self._give(connection)

    async def open_session(self, instance_id: str, bound: bool = False) -> "Session":
        """Raises TallygateError. See tallygate.Client.open_session."""
        connection = _Connection(self._socket_path, self._patience_s)
        deadline = time.monotonic() + self._patience_s
        try:
            while True:
                response = await connection.once(open_call(instance_id, bound))
                session_id = response.read(session_id_of)
                # If the response was lost, a session bound to that connection has ended: open another.
                end = await connection.end_of_session(session_id) if bound and not response.is_first else None
                if end is None:
                    return Session(connection, session_id, response)
                if time.monotonic() > deadline:
                    raise end
        except BaseException:
            connection.close()
            raise

    def close(self) -> None:
        """Closes idle connections. Sessions stay open."""
        while self._idle:
            self._idle.pop().close()

    async def __aenter__(self) -> "Client":
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()

    def _take(self) -> "_Connection":
        for found in (self._idle, self._resting):
            while found:
                connection = found.pop()
                if connection.is_own:
                    return connection
                connection.close()
        return _Connection(self._socket_path, self._patience_s)

    def _give(self, connection: "_Connection") -> None:
        if len(self._idle) < IDLE_MAX:
            self._idle.append(connection)
        else:
            connection.close()
            self._resting.append(connection)


class Session:
    """Sends heartbeats from a task of its own until it is closed or ends. See tallygate.Session."""

    def __init__(self, connection: "_Connection", session_id: str, opened: Response) -> None:
        self.id = session_id
        # Set when the session ends by itself: out of tokens, locked, or timed out.
        self.end: Optional[SessionEnded] = None
        self._connection = connection
        # One call at a time.
        self._lock = asyncio.Lock()
        self._over = asyncio.Event()
        self._heartbeat_s = opened.heartbeat_s
        self._beating = None if self._heartbeat_s is None else asyncio.ensure_future(self._beat())

    async def request(self, requester: Requester, items: Iterable[Item], rollback_on_deny: bool = True) -> Answer:
        """Requests all items or none. See tallygate.Session.request."""
        call = request_call(self.id, requester, items, rollback_on_deny)
        return answer_of(await self._call(call), call)

    async def halt(self, requester: Requester) -> None:
        """Refunds the rest of the interval and charges nothing until the next request."""
        await self.request(requester, [])

    async def state(self) -> str:
        """Raises SessionEnded if the agent does not know the session any more, TallygateError."""
        return (await self._call(session_call("GET", self.id))).read(state_of)

    async def wait(self) -> Optional[SessionEnded]:
        """Waits until the session ends. None: it was closed."""
        self._connection.require_own()
        await self._over.wait()
        return self.end

    async def close(self) -> None:
        """Closes the session and refunds unused tokens. See tallygate.Session.close."""
        if not self._connection.is_own:
            self._connection.close()
            return
        self._over.set()
        try:
            await self._call(session_call("DELETE", self.id))
        except SessionEnded:
            pass
        finally:
            if self._beating is not None:
                self._beating.cancel()
            self._connection.close()

    async def __aenter__(self) -> "Session":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def _call(self, call: Call) -> Response:
        self._connection.require_own()
        async with self._lock:
            try:
                response = await (self._connection.call(call) if call.method == "GET" else self._connection.once(call))
                self._heartbeat_s = response.heartbeat_s or self._heartbeat_s
                return response
            except TallygateError as error:
                end = end_of(error)
                if end is None:
                    raise
                if not self._over.is_set():
                    self.end = end
                    self._over.set()
                raise end from error

    async def _beat(self) -> None:
        while not self._over.is_set():
            # Two can be lost.
            await asyncio.sleep((self._heartbeat_s or RESPONSE_S) / 3)
            try:
                await self._call(session_call("GET", self.id, "/heartbeat"))
            except TallygateError:
                pass  # Ended, as `end` says; or without a response, so the next one follows.


class _Connection(OfOneProcess):
    """For one request at a time."""

    def __init__(self, socket_path: str, patience_s: float) -> None:
        super().__init__()
        self._socket_path = socket_path
        self._patience_s = patience_s
        self._numbering = Numbering()
        self._wire: Optional[_Wire] = None

    async def once(self, call: Call) -> Response:
        """Takes effect at most once, however often it is sent."""
        try:
            return await self.call(self._numbering.next(call))
        except BaseException as error:
            self._numbering.failed(error)
            raise

    async def call(self, call: Call) -> Response:
        attempts = Attempts(self._patience_s, self._socket_path)
        while True:
            try:
                decided = attempts.judge(await self._send(call))
            except (OSError, HTTPException) as error:
                decided = attempts.judge(error)
            if decided is not None:
                return decided
            await asyncio.sleep(attempts.pause_s)

    async def end_of_session(self, session_id: str) -> Optional[SessionEnded]:
        """None: the session is alive."""
        try:
            await self.call(session_call("GET", session_id, "/heartbeat"))
            return None
        except TallygateError as error:
            end = end_of(error)
            if end is None:
                raise
            return end

    def close(self) -> None:
        if self._wire is None:
            return
        wire, self._wire = self._wire.transport, None
        if self.is_own:
            wire.abort()
        elif not wire.is_closing():
            # Closes the inherited socket only: the event loop shares its epoll with the other process.
            with open(os.devnull, "rb") as nothing:
                os.dup2(nothing.fileno(), wire.get_extra_info("socket").fileno(), inheritable=False)

    async def _send(self, call: Call) -> Response:
        text = call.encode()
        if self._wire is not None and self._wire.transport.is_closing():
            self._wire = None
        try:
            if self._wire is None:
                loop = asyncio.get_running_loop()
                _, self._wire = await loop.create_unix_connection(_Wire, self._socket_path)
            response = await self._wire.send(text)
        except BaseException:
            # Cancelled, too: the rest of the response must not answer the next request.
            self.close()
            raise
        if response.head.closes:
            self.close()
        return response


class _Wire(asyncio.Protocol):
    """A connection that closes when the agent sends something that answers no request."""

    transport: asyncio.Transport

    def __init__(self) -> None:
        self._reader = Reader()
        self._response: Optional["asyncio.Future[Response]"] = None

    async def send(self, text: bytes) -> Response:
        self._reader = Reader()
        if self.transport.is_closing():
            raise ConnectionResetError("the connection ended")
        loop = asyncio.get_running_loop()
        self._response = loop.create_future()
        # Not wait_for: before Python 3.12, it can lose a cancellation.
        late = loop.call_later(RESPONSE_S, self._fail, TimeoutError("no response in time"))
        try:
            self.transport.write(text)
            return await self._response
        finally:
            late.cancel()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._response is None or self._response.done():
            self.transport.abort()
            return
        try:
            response = self._reader.feed(data)
            if response is not None:
                self._response.set_result(response)
        except (HTTPException, TallygateError) as error:
            self._fail(error)

    def connection_lost(self, exc: Optional[Exception]) -> None:
        self._fail(ConnectionResetError("the connection ended"))

    def _fail(self, error: Exception) -> None:
        if self._response is not None and not self._response.done():
            self._response.set_exception(error)
