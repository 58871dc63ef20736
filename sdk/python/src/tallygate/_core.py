"""What the client and the asyncio client share: bodies, errors, and when a request is repeated. Sends nothing."""

import json
import os
import re
import time
import uuid
from dataclasses import dataclass
from decimal import Decimal
from http.client import HTTPException
from typing import Any, Callable, Dict, Iterable, Mapping, NamedTuple, Optional, Sequence, Tuple, TypeVar, Union
from urllib.parse import quote

T = TypeVar("T")

USUAL_SOCKET = "/run/tallygate/agent.sock"
IDLE_MAX = 16
FIRST_PAUSE_S = 0.02
LONGEST_PAUSE_S = 1.0
# A response must be complete within this time.
RESPONSE_S = 30.0
RESPONSE_BYTES_MAX = 16 * 2**20
HEAD_BYTES_MAX = 2**16
# Without the final NUL of `sun_path`.
PATH_BYTES_MAX = 107

NEED_CLOUD = ("DEVICE_LOCKED", "NOT_ATTACHED", "POLICY_MISSING", "POLICY_STALE")
ITEM_RETRY_ONLINE = ("2008", "2009", "2010")
ITEM_RETRY_LATER = ("2002", "2004", "2005", "2011")
# Valid, but not charged because another item of the session request was refused.
NOT_CHARGED = "1002"


@dataclass(frozen=True)
class Requester:
    type: str
    value: str
    # Properties that rules of access test.
    dictionary: Optional[Mapping[str, Any]] = None


@dataclass(frozen=True)
class Item:
    item: str
    count: Union[int, float, Decimal]
    version: Optional[str] = None
    # Variables of a rate formula.
    variables: Optional[Mapping[str, float]] = None
    # Stored in usage records only.
    meta_data: Optional[Mapping[str, Any]] = None


@dataclass(frozen=True)
class AnsweredItem:
    item: str
    version: Optional[str]
    granted: bool
    # Four digits; the first is 1 if the item was not refused, and 2 if it was.
    code: str
    description: str
    tokens_charged: Decimal
    # When the same request can succeed: "no", "later" or "online"; None: the item was not refused.
    retry: Optional[str]


@dataclass(frozen=True)
class Answer:
    # For `tallygate explain`.
    correlation_id: str
    # True if every item is granted.
    granted: bool
    items: Tuple[AnsweredItem, ...]
    # What exists instead of an unknown item, such as "LaserCut exists as version 1.0".
    advice: Optional[str]


class TallygateError(Exception):
    """The agent refused the request, or gave no response. Codes: docs/reference/errors.md."""

    def __init__(self, code: str, message: str, retry: str) -> None:
        super().__init__(message)
        self.code = code
        # "no", "later", or "online": once the device has reached the cloud.
        self.retry = retry


class AgentUnreachable(TallygateError):
    """No response to an attempt until the patience ended, or no permission to connect. The request may have been charged."""


class NeedsCloud(TallygateError):
    """The device must reach the cloud first: it has no usable rules, is not attached, or was locked by an administrator."""


class LimitReached(TallygateError):
    """The user of this process has used up its limit of requests or tokens."""

    def __init__(self, code: str, message: str, retry_after_s: int) -> None:
        super().__init__(code, message, "later")
        self.retry_after_s = retry_after_s


class SessionEnded(TallygateError):
    """The session has ended: stop the work that it paid for."""

    def __init__(self, message: str, state: str) -> None:
        super().__init__("SESSION_ENDED", message, "no")
        # TERMINATED, LOCKED, FAILED, DISCONNECTED, or UNKNOWN to the agent.
        self.state = state


class Call(NamedTuple):
    method: str
    path: str
    body: Optional[Mapping[str, Any]] = None
    headers: Mapping[str, str] = {}

    def encode(self) -> bytes:
        try:
            text = b"" if self.body is None else json.dumps(self.body, default=float, allow_nan=False).encode()
        except (ArithmeticError, RecursionError, TypeError, ValueError) as error:
            raise TallygateError("BAD_JSON", f"The request cannot be written as JSON: {error}", "no") from None
        lines = [f"{self.method} {self.path} HTTP/1.1", "Host: localhost", "Content-Type: application/json"]
        lines += [f"{name}: {value}" for name, value in self.headers.items()]
        lines += [f"Content-Length: {len(text)}", "", ""]
        return "\r\n".join(lines).encode() + text


class Head(NamedTuple):
    status: int
    headers: Dict[str, str]

    @staticmethod
    def parse(lines: Sequence[bytes]) -> "Head":
        status = lines[0].split(b" ", 2)
        if len(status) < 2 or not status[0].startswith(b"HTTP/1.") or not re.fullmatch(rb"[1-9]\d\d", status[1]):
            raise HTTPException("not an HTTP response")
        if not all(re.fullmatch(rb"[!-9;-~]+:[^\r\n\0]*", line) for line in lines[1:]):
            raise HTTPException("not a header")
        pairs = [line.decode("latin-1").partition(":") for line in lines[1:]]
        headers = {name.lower(): value.strip() for name, _, value in pairs}
        if sum(name.lower() == "content-length" for name, _, _ in pairs) > 1:
            raise HTTPException("two lengths")
        return Head(int(status[1]), headers)

    @property
    def length(self) -> int:
        if self.status == 204:
            return 0
        # The agent always sends a length. Without it, a response that was cut looks complete.
        text = self.headers.get("content-length")
        if text is None:
            raise unexpected(self.status, "no Content-Length")
        if not re.fullmatch("[0-9]{1,18}", text):
            raise HTTPException("not an HTTP response")
        if int(text) > RESPONSE_BYTES_MAX:
            raise unexpected(self.status, "longer than 16 MiB")
        return int(text)

    @property
    def closes(self) -> bool:
        return self.headers.get("connection", "").lower() == "close"


class Response(NamedTuple):
    head: Head
    text: bytes
    # Of the first attempt.
    is_first: bool = True

    def read(self, part: Callable[[Any], T]) -> T:
        try:
            return part(_json_of(self))
        except (ArithmeticError, AttributeError, LookupError, RecursionError, TypeError, ValueError):
            raise unexpected(self.head.status, self.text) from None

    @property
    def heartbeat_s(self) -> Optional[float]:
        """Longest time between two heartbeats; None: none are needed."""
        every = self.head.headers.get("x-tallygate-heartbeat-ms", "")
        return int(every) / 1000 if re.fullmatch("[1-9][0-9]{0,14}", every) else None


class Reader:
    """Puts the bytes of a connection together to one response."""

    def __init__(self) -> None:
        self._bytes = bytearray()
        self._head: Optional[Head] = None

    def feed(self, piece: bytes) -> Optional[Response]:
        """None: more bytes are needed. Raises HTTPException, ConnectionResetError, TallygateError."""
        if not piece:
            raise ConnectionResetError("the connection ended")
        self._bytes += piece
        while self._head is None:
            end = self._bytes.find(b"\r\n\r\n")
            if end > HEAD_BYTES_MAX or (end < 0 and len(self._bytes) > HEAD_BYTES_MAX):
                raise HTTPException("headers too large")
            if end < 0:
                return None
            head = Head.parse(bytes(self._bytes[:end]).split(b"\r\n"))
            del self._bytes[: end + 4]
            if head.status == 101:
                raise HTTPException("not an HTTP response")
            if head.status >= 200:
                self._head = head
        surplus = len(self._bytes) - self._head.length
        if surplus < 0:
            return None
        if surplus > 0:
            # What follows belongs to no request.
            self._head.headers["connection"] = "close"
        return Response(self._head, bytes(self._bytes[: self._head.length]))


class Numbering:
    """A UUID under which one connection numbers its requests, so that a repeated request is charged once."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        self._name, self._sent = str(uuid.uuid4()), 0

    def failed(self, error: BaseException) -> None:
        if not isinstance(error, TallygateError) or isinstance(error, AgentUnreachable):
            # The agent may still be deciding this request, and takes no further number until then.
            self.renew()

    def next(self, call: Call) -> Call:
        self._sent += 1
        numbered = {"x-tallygate-session": self._name, "x-tallygate-request": str(self._sent)}
        return call._replace(headers={**call.headers, **numbered})


class OfOneProcess:
    """A forked process inherits the socket and the numbers, and must not use them."""

    def __init__(self) -> None:
        self._process = os.getpid()

    @property
    def is_own(self) -> bool:
        return self._process == os.getpid()

    def require_own(self) -> None:
        if not self.is_own:
            message = "Another process opened this session. Open a session in this process."
            raise TallygateError("SESSION_OF_ANOTHER", message, "no")


class Attempts:
    """One request with its repetitions."""

    def __init__(self, patience_s: float, socket_path: str) -> None:
        self._deadline = time.monotonic() + patience_s
        self._socket_path = socket_path
        self._is_first = True
        self._is_lost = False
        # Before the next attempt.
        self.pause_s = FIRST_PAUSE_S / 2

    def judge(self, outcome: Union[Response, Exception]) -> Optional[Response]:
        """The response with the decision. None: send again after the pause. Raises TallygateError."""
        if isinstance(outcome, Response) and _is_decision(outcome):
            return outcome._replace(is_first=self._is_first)
        is_first, self._is_first = self._is_first, False
        self.pause_s = min(2 * self.pause_s, LONGEST_PAUSE_S)
        is_permitted = not isinstance(outcome, PermissionError)
        if isinstance(outcome, Response):
            may_repeat = _is_temporary(outcome)
        else:
            # systemd creates a socket before it sets its group: after another failure, this one may end soon.
            may_repeat = is_permitted or not is_first
        if may_repeat and time.monotonic() + self.pause_s <= self._deadline:
            self._is_lost = self._is_lost or not isinstance(outcome, Response)
            return None
        if isinstance(outcome, Response):
            refused = refusal_of(outcome)
            if self._is_lost and refused.retry == "later":
                # An agent that refuses for the moment does not look whether the lost attempt was charged.
                raise AgentUnreachable(refused.code, str(refused), "later")
            raise refused
        if not is_permitted:
            advice = "Add this user to the group of the socket, and sign in again"
            message = f"This user may not connect to {self._socket_path}. {advice}."
            raise AgentUnreachable("SOCKET_NOT_PERMITTED", message, "no") from outcome
        advice = "Start the agent"
        if len(os.fsencode(self._socket_path)) > PATH_BYTES_MAX:
            advice = f"Set TALLYGATE_SOCKET to a path of at most {PATH_BYTES_MAX} bytes"
        elif isinstance(outcome, (FileNotFoundError, ConnectionRefusedError)):
            advice += ", or set TALLYGATE_SOCKET to the path of its socket"
        else:
            advice += ". If it runs, close unused connections to it: socket.connections_max limits their number"
        message = f"The agent does not respond at {self._socket_path} ({outcome}). {advice}."
        raise AgentUnreachable("AGENT_UNREACHABLE", message, "later") from outcome


def socket_path_of(given: Optional[str]) -> str:
    return given or os.environ.get("TALLYGATE_SOCKET") or USUAL_SOCKET


def access_call(instance_id: str, requester: Requester, items: Iterable[Item]) -> Call:
    return Call("POST", f"/v1.1/instances/{quote(instance_id, safe='')}/access-request", _request_body(requester, items))


def open_call(instance_id: str, bound: bool) -> Call:
    headers = {"x-tallygate-bound": "connection"} if bound else {}
    return Call("POST", "/v1.1/sessions", {"instanceId": instance_id}, headers)


def session_call(method: str, session_id: str, what: str = "") -> Call:
    return Call(method, f"/v1.1/sessions/{session_id}{what}")


def request_call(session_id: str, requester: Requester, items: Iterable[Item], rollback_on_deny: bool) -> Call:
    body = {**_request_body(requester, items), "rollbackOnDeny": rollback_on_deny}
    return Call("PUT", f"/v1.1/sessions/{session_id}", body)


OFFERS_CALL = Call("GET", "/tallygate/v1/offers")


def _request_body(requester: Requester, items: Iterable[Item]) -> Dict[str, Any]:
    given = [
        {
            "item": each.item,
            "version": each.version,
            "count": each.count,
            "variables": each.variables,
            "metaData": each.meta_data,
        }
        for each in items
    ]
    who = {"type": requester.type, "value": requester.value, "dictionary": requester.dictionary}
    return {"requester": _without_none(who), "requestedItems": [_without_none(each) for each in given]}


def _without_none(fields: Mapping[str, Any]) -> Dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


def answer_of(response: Response, call: Call) -> Answer:
    is_denied = response.head.status == 403
    advice = response.head.headers.get("x-tallygate-advice")

    def part(body: Any) -> Answer:
        items = tuple(_item_of(each) for each in body["requestedItems"])
        if len(items) != len((call.body or {})["requestedItems"]):
            raise ValueError
        granted = not is_denied and all(each.granted for each in items)
        return Answer(_text(body["correlationId"]), granted, items, advice)

    return response.read(part)


def _item_of(fields: Mapping[str, Any]) -> AnsweredItem:
    code, tokens = fields["status"]["code"], fields["totalTokensCharged"]
    if not re.fullmatch("[0-9]{4}", code) or isinstance(tokens, (bool, str)):
        raise ValueError
    ok = code.startswith("1")
    return AnsweredItem(
        item=_text(fields["item"]),
        version=fields.get("version"),
        granted=ok and code != NOT_CHARGED,
        code=code,
        description=fields["status"]["description"],
        tokens_charged=Decimal(tokens),
        retry=None if ok else "online" if code in ITEM_RETRY_ONLINE else "later" if code in ITEM_RETRY_LATER else "no",
    )


def _is_temporary(response: Response) -> bool:
    """The agent says that the same request can be repeated. Limits are left to the application."""
    return _retry_after_s(response) is not None and _error_of(response)[0] != "CALLER_LIMITED"


def _is_decision(response: Response) -> bool:
    """Denied session requests have the status 403 and the body of a decision."""
    status = response.head.status
    return 200 <= status < 300 or (status == 403 and b'"requestedItems"' in response.text)


def _error_of(response: Response) -> Tuple[str, str]:
    try:
        body = _json_of(response)
        return _text(body["code"]), str(body["message"])
    except (KeyError, RecursionError, TypeError, ValueError):
        error = unexpected(response.head.status, response.text)
        return error.code, str(error)


def _json_of(response: Response) -> Any:
    return json.loads(response.text.decode(errors="replace"), parse_float=Decimal)


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError
    return value


def session_id_of(body: Any) -> str:
    """Ids become a part of paths."""
    if not re.fullmatch(r"[\w-]{1,36}", body["sessionId"], re.ASCII):
        raise ValueError
    return str(body["sessionId"])


def state_of(body: Any) -> str:
    return _text(body["state"])


def offers_of(body: Any) -> Any:
    if not isinstance(body["instances"], list):
        raise ValueError
    return body


def unexpected(status: int, text: Union[str, bytes]) -> TallygateError:
    shown = text if isinstance(text, str) else text[:200].decode(errors="replace")
    message = f"The response is not from a Tallygate agent (HTTP status {status}: {shown}). Check the path of the socket."
    return TallygateError("ANSWER_UNEXPECTED", message, "no")


def _retry_after_s(response: Response) -> Optional[int]:
    text = response.head.headers.get("retry-after", "")
    return int(text) if re.fullmatch("[0-9]{1,9}", text) else None


def refusal_of(response: Response) -> TallygateError:
    code, message = _error_of(response)
    retry_after_s = _retry_after_s(response)
    if code == "CALLER_LIMITED":
        return LimitReached(code, message, 1 if retry_after_s is None else retry_after_s)
    if code in NEED_CLOUD:
        return NeedsCloud(code, message, "online")
    return TallygateError(code, message, "no" if retry_after_s is None else "later")


def end_of(error: TallygateError) -> Optional[SessionEnded]:
    """None: the error does not mean that the session has ended."""
    if error.code == "NOT_FOUND":
        return SessionEnded(str(error), "UNKNOWN")
    if error.code != "SESSION_NOT_OPERABLE":
        return None
    return SessionEnded(str(error), str(error).rpartition("Session is ")[2] or "TERMINATED")
