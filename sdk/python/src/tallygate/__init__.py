"""Client for the Tallygate agent on this device: access requests and sessions over its Unix socket.

A request without a response is repeated under the same number, also after a restart of the agent, so it is charged once.
Sessions send their own heartbeats. `tallygate.aio` has the same for asyncio.
"""

import socket
import threading
import time
from http.client import HTTPException
from typing import Any, Iterable, List, Optional

from ._core import (
    IDLE_MAX,
    OFFERS_CALL,
    RESPONSE_S,
    AgentUnreachable,
    Answer,
    AnsweredItem,
    Attempts,
    Call,
    Item,
    LimitReached,
    NeedsCloud,
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

__all__ = [
    "AgentUnreachable",
    "Answer",
    "AnsweredItem",
    "Client",
    "Item",
    "LimitReached",
    "NeedsCloud",
    "Requester",
    "Session",
    "SessionEnded",
    "TallygateError",
    "connect",
]


def connect(socket_path: Optional[str] = None, patience_s: float = 10.0) -> "Client":
    """Sends nothing before the first call.

    socket_path: of the agent; default: $TALLYGATE_SOCKET, or /run/tallygate/agent.sock.
    patience_s: how long to repeat a request while the agent is down, restarting or busy.
    """
    return Client(socket_path_of(socket_path), patience_s)


class Client:
    """Threads can share it."""

    def __init__(self, socket_path: str, patience_s: float) -> None:
        self._socket_path = socket_path
        self._patience_s = patience_s
        # Each for one request at a time.
        self._idle: List[_Connection] = []
        # Without a socket, after many requests at a time: all programs of the device share the agent's sockets.
        self._resting: List[_Connection] = []

    def access(self, instance_id: str, requester: Requester, items: Iterable[Item]) -> Answer:
        """Each item is granted or refused by itself. Raises TallygateError."""
        call = access_call(instance_id, requester, items)
        connection = self._take()
        try:
            return answer_of(connection.once(call), call)
        finally:
            self._give(connection)

    def offers(self) -> Any:
        """The items that can be requested now, as in the local API. Raises TallygateError."""
        connection = self._take()
        try:
            return connection.call(OFFERS_CALL).read(offers_of)
        finally:
            self._give(connection)

    def open_session(self, instance_id: str, bound: bool = False) -> "Session":
        """Raises TallygateError.

        bound: the session ends with this process, and when the agent restarts. Default: when its heartbeats stop.
        """
        connection = _Connection(self._socket_path, self._patience_s)
        deadline = time.monotonic() + self._patience_s
        try:
            while True:
                response = connection.once(open_call(instance_id, bound))
                session_id = response.read(session_id_of)
                # If the response was lost, a session bound to that connection has ended: open another.
                end = connection.end_of_session(session_id) if bound and not response.is_first else None
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

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _take(self) -> "_Connection":
        for found in (self._idle, self._resting):
            while connection := _pop(found):
                if connection.is_own:
                    return connection
                connection.close()
        return _Connection(self._socket_path, self._patience_s)

    def _give(self, connection: "_Connection") -> None:
        # Without a lock, which a forked process could inherit locked.
        self._idle.append(connection)
        if len(self._idle) > IDLE_MAX and (last := _pop(self._idle)):
            last.close()
            self._resting.append(last)


def _pop(connections: "List[_Connection]") -> "Optional[_Connection]":
    try:
        return connections.pop()
    except IndexError:
        return None


class Session:
    """Sends heartbeats from a thread of its own until it is closed or ends. Use Client.open_session.

    It belongs to the process that opened it. In a forked process, requests raise SESSION_OF_ANOTHER.
    """

    def __init__(self, connection: "_Connection", session_id: str, opened: Response) -> None:
        self.id = session_id
        # Set when the session ends by itself: out of tokens, locked, or timed out.
        self.end: Optional[SessionEnded] = None
        self._connection = connection
        # One call at a time.
        self._lock = threading.Lock()
        self._over = threading.Event()
        self._heartbeat_s = opened.heartbeat_s
        if self._heartbeat_s is not None:
            threading.Thread(target=self._beat, daemon=True).start()

    def request(self, requester: Requester, items: Iterable[Item], rollback_on_deny: bool = True) -> Answer:
        """Requests all items or none. Granted items replace the previous ones and are charged for each interval.

        After a refusal (`granted` is false) the session continues unchanged, unless rollback_on_deny is false: then it
        ends. Raises SessionEnded, TallygateError.
        """
        call = request_call(self.id, requester, items, rollback_on_deny)
        return answer_of(self._call(call), call)

    def halt(self, requester: Requester) -> None:
        """Refunds the rest of the interval and charges nothing until the next request."""
        self.request(requester, [])

    def state(self) -> str:
        """Raises SessionEnded if the agent does not know the session any more, TallygateError."""
        return self._call(session_call("GET", self.id)).read(state_of)

    def wait(self, timeout_s: Optional[float] = None) -> Optional[SessionEnded]:
        """Waits until the session ends. None: it was closed, or the time is over."""
        self._connection.require_own()
        self._over.wait(timeout_s)
        return self.end

    def close(self) -> None:
        """Closes the session and refunds unused tokens. Closing an ended session is not an error.

        In a forked process: closes what it has inherited. The session continues.
        """
        if not self._connection.is_own:
            self._connection.close()
            return
        self._over.set()
        try:
            self._call(session_call("DELETE", self.id))
        except SessionEnded:
            pass
        finally:
            with self._lock:
                self._connection.close()

    def __enter__(self) -> "Session":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _call(self, call: Call) -> Response:
        self._connection.require_own()
        with self._lock:
            try:
                response = self._connection.call(call) if call.method == "GET" else self._connection.once(call)
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

    def _beat(self) -> None:
        # Two can be lost.
        while not self._over.wait((self._heartbeat_s or RESPONSE_S) / 3):
            try:
                self._call(session_call("GET", self.id, "/heartbeat"))
            except TallygateError:
                pass  # Ended, as `end` says; or without a response, so the next one follows.


class _Connection(OfOneProcess):
    """For one request at a time."""

    def __init__(self, socket_path: str, patience_s: float) -> None:
        super().__init__()
        self._socket_path = socket_path
        self._patience_s = patience_s
        self._numbering = Numbering()
        self._socket: Optional[socket.socket] = None

    def once(self, call: Call) -> Response:
        """Takes effect at most once, however often it is sent."""
        try:
            return self.call(self._numbering.next(call))
        except BaseException as error:
            self._numbering.failed(error)
            raise

    def call(self, call: Call) -> Response:
        attempts = Attempts(self._patience_s, self._socket_path)
        while True:
            try:
                decided = attempts.judge(self._send(call))
            except (OSError, HTTPException) as error:
                decided = attempts.judge(error)
            if decided is not None:
                return decided
            time.sleep(attempts.pause_s)

    def end_of_session(self, session_id: str) -> Optional[SessionEnded]:
        """None: the session is alive."""
        try:
            self.call(session_call("GET", session_id, "/heartbeat"))
            return None
        except TallygateError as error:
            end = end_of(error)
            if end is None:
                raise
            return end

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _send(self, call: Call) -> Response:
        text, deadline = call.encode(), time.monotonic() + RESPONSE_S
        if self._socket is not None and not _is_silent(self._socket):
            self.close()
        try:
            if self._socket is None:
                self._socket = socket.socket(socket.AF_UNIX)
                self._socket.settimeout(RESPONSE_S)
                self._socket.connect(self._socket_path)
            self._socket.settimeout(_left(deadline))
            self._socket.sendall(text)
            response, reader = None, Reader()
            while response is None:
                self._socket.settimeout(_left(deadline))
                response = reader.feed(self._socket.recv(65536))
        except BaseException:
            # Interrupted, too: the rest of the response must not answer the next request.
            self.close()
            raise
        if response.head.closes:
            self.close()
        return response


def _left(deadline: float) -> float:
    """Seconds. 0 would turn waiting off."""
    return max(deadline - time.monotonic(), 0.001)


def _is_silent(connection: socket.socket) -> bool:
    """False: the agent has closed it, or has sent something that answers no request."""
    connection.setblocking(False)
    try:
        connection.recv(1)
    except BlockingIOError:
        return True
    except OSError:
        pass
    return False
