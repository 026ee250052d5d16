"""Backends and locks, for threads."""

import itertools
import logging
import math
import threading
import warnings
import weakref
from ctypes import byref, c_bool, c_int64, sizeof
from dataclasses import dataclass
from datetime import timedelta
from types import TracebackType
from typing import Any, Callable, Dict, List, Optional, Type, Union

from ._errors import Error, InvalidArgument, LockLost
from ._handle import Abort, Owned, Owner, aborted_by, exiting, interruptible
from ._library import (ABSENT, CONSTANTS, OK, WAIT_FOREVER, Call, ErrorDetails, LockInfoStruct, LockOptions,
                       LostFn, Options, failure, lib, text)

Seconds = Union[int, float, timedelta]
OnLost = Callable[["Lock", str], None]

_logger = logging.getLogger("syncguard")


def milliseconds(value: Seconds, what: str) -> int:
    """Rounded up, so that a short time does not become 0."""
    seconds = value.total_seconds() if isinstance(value, timedelta) else float(value)
    if not 0 <= seconds <= CONSTANTS["max_time_ms"] / 1000:
        raise InvalidArgument("%s is not a time" % what)
    return math.ceil(seconds * 1000)


def limits(timeout: Optional[Seconds]) -> Any:
    call = Call(size=sizeof(Call))
    if timeout is not None:
        # In C, 0 means the timeout of the backend
        call.timeout_ms = max(1, milliseconds(timeout, "timeout"))
    return byref(call)


# ---- loss ---------------------------------------------------------------------------------------


class _Loss:
    """The function that is called when a lock is lost. The Lock object is created only after the acquire has returned."""

    def __init__(self, function: OnLost) -> None:
        self.function = function
        self.ready = threading.Event()
        self.lock: Callable[[], Optional["Lock"]] = lambda: None


_losses: Dict[int, _Loss] = {}
_numbers = itertools.count(1)


def _call_on_lost(context: int, _pointer: int, reason: int) -> None:
    """Called by a thread of the library. All locks share this one function, so it is never freed while it runs."""
    loss = _losses.get(context)
    if loss is None or exiting.is_set():
        return
    loss.ready.wait()
    lock = loss.lock()
    if lock is not None:
        loss.function(lock, reason_name(reason))


_lost = LostFn(_call_on_lost)


def _ends_with(function: Callable[[int], None], number: int) -> Callable[[int], None]:
    """Frees a lock by a function of the library, and then the function that is called when it is lost."""

    def free(pointer: int) -> None:
        function(pointer)
        _losses.pop(number, None)

    return free


def reason_name(reason: int) -> str:
    return str(lib.syncguard_lost_reason_name(reason).decode())


# ---- locks --------------------------------------------------------------------------------------


class Lock(Owner):
    """A lock that is held. Use it in a `with` statement, which releases it.

    key, id and fence do not change while the lock is held. Anyone who knows the id can release the lock: do not log it.
    slot: the number of the slot if the lock was acquired with slots (key is then the key of the slot), else 0.
    """

    def __init__(self, owned: Owned, raises: bool, number: int) -> None:
        super().__init__(owned)
        self.key = str(lib.syncguard_lock_key(owned.pointer).decode())
        self.id = str(lib.syncguard_lock_id(owned.pointer).decode())
        self.fence = str(lib.syncguard_lock_fence(owned.pointer).decode())
        self.slot = int(lib.syncguard_lock_slot(owned.pointer))
        self._raises, self._number = raises, number
        self._last_loss: Optional[str] = None
        self._releases: List[None] = []  # one entry per release that was begun; threads may append at the same time
        self._absent = False  # the only release did not find the lock in the store

    @property
    def held(self) -> bool:
        """True while this process holds the lock: it is neither released nor lost, and its lease has not ended."""
        owned = self._owned
        return owned is not None and bool(lib.syncguard_lock_held(owned.pointer))

    @property
    def lost(self) -> Optional[str]:
        """Why the lock is lost: "absent", "unconfirmed", "max-hold", "forked"; None if it is not."""
        owned = self._owned
        if owned is None:
            return self._last_loss
        reason = lib.syncguard_lock_lost(owned.pointer)
        return reason_name(reason) if reason else None

    @property
    def remaining(self) -> float:
        """Seconds until the lease ends, by the clock of this machine."""
        owned = self._owned
        return 0.0 if owned is None else float(lib.syncguard_lock_remaining_ms(owned.pointer)) / 1000

    @property
    def expires_at(self) -> Optional[float]:
        """The expiry that the store last confirmed, in seconds since 1970 by the store's clock; None if closed."""
        owned = self._owned
        return None if owned is None else float(lib.syncguard_lock_expires_at_ms(owned.pointer)) / 1000

    def check(self) -> None:
        """Raises LockLost if the lock is lost."""
        reason = self.lost
        if reason is not None:
            raise LockLost(reason)

    def extend(self, ttl: Seconds, *, timeout: Optional[Seconds] = None) -> bool:
        """Extends the lock now. Later renewals use the same ttl. Returns False if the lock is lost."""
        return self._call(lib.syncguard_lock_extend, milliseconds(ttl, "ttl"), limits(timeout),
                          byref(c_int64())) == OK

    def release(self, *, timeout: Optional[Seconds] = None) -> bool:
        """Releases the lock now. Returns True if this call released it, False if it was no longer held. If this raises
        an Error, the library keeps trying to release the lock in the background until the lease ends."""
        if self._owned is None:
            return False
        self._releases.append(None)
        try:
            released = self._call(lib.syncguard_lock_release, limits(timeout)) == OK
            self._absent = not released and len(self._releases) == 1  # else another thread may have released it
            return released
        finally:
            self.close()

    def close(self) -> None:
        """Releases the lock unless it has been released. A failure is not raised, only logged."""
        self._last_loss = self.lost
        super().close()

    def detach(self) -> str:
        """Closes this object but leaves the lock held. Returns the lock id, which permits extend and release."""
        owned = self._owned
        if owned is None:
            raise InvalidArgument("the lock is closed")
        owned.free = _ends_with(lib.syncguard_lock_detach, self._number)
        self.close()
        return self.id

    def __enter__(self) -> "Lock":
        return self

    def __exit__(self, kind: Optional[Type[BaseException]], _value: Optional[BaseException],
                 _traceback: Optional[TracebackType]) -> None:
        was_open = self._owned is not None
        try:
            self.release()
        except Error as error:
            _logger.warning("a lock could not be released, its lease ends it: %s", error)
        if self.lost is None and was_open and self._absent:
            self._last_loss = "absent"
        reason = self.lost
        if reason is not None and self._raises and kind is None:
            raise LockLost(reason)

    def __del__(self) -> None:
        if getattr(self, "_owned", None) is not None and self.held:
            warnings.warn("a lock was dropped while it was held; it is released now", ResourceWarning,
                          source=self)

    def __repr__(self) -> str:
        return "<syncguard.Lock fence=%s %s>" % (self.fence, "held" if self.held else "not held")


@dataclass(frozen=True)
class LockInfo:
    """A live lock without its key, lock id and owner, so that it may be logged and shown.

    Times are seconds since 1970 on the clock of the store, not on the local clock. now is when the store was
    read: the lock has been held for now - acquired_at, and its lease ends in expires_at - now.
    """

    key_hash: str
    lock_id_hash: str
    fence: str
    expires_at: float
    acquired_at: float
    now: float


def lock_options(ttl: Seconds, auto_extend: bool, max_hold: Optional[Seconds], min_hold: Seconds,
                 slots: int) -> LockOptions:
    options = LockOptions()
    lib.syncguard_lock_options_init(byref(options), sizeof(options))
    options.ttl_ms = milliseconds(ttl, "ttl")
    options.auto_extend = auto_extend
    options.max_hold_ms = 0 if max_hold is None else milliseconds(max_hold, "max_hold")
    options.min_hold_ms = milliseconds(min_hold, "min_hold")
    options.slots = max(-1, min(slots, 1 << 30))  # the library refuses both; ctypes would wrap around
    return options


def waiting_options(wait: Optional[Seconds], ttl: Seconds, auto_extend: bool, max_hold: Optional[Seconds],
                    min_hold: Seconds, slots: int, retry_unavailable: bool) -> LockOptions:
    options = lock_options(ttl, auto_extend, max_hold, min_hold, slots)
    options.max_retries = -1
    options.timeout_ms = WAIT_FOREVER if wait is None else milliseconds(wait, "wait")
    options.retry_unavailable = retry_unavailable
    return options


# ---- backends -----------------------------------------------------------------------------------


class Backend(Owner):
    """An open store. Close it, or use it in a `with` statement. Its locks keep the store open."""

    def __init__(self, owned: Owned) -> None:
        super().__init__(owned)
        self.name = str(lib.syncguard_capabilities_get(owned.pointer).contents.backend.decode())
        self._closing = Abort()

    def acquire(self, key: str, *, wait: Optional[Seconds] = 5, ttl: Seconds = 30, auto_extend: bool = False,
                max_hold: Optional[Seconds] = None, min_hold: Seconds = 0, slots: int = 0,
                retry_unavailable: bool = False, on_lost: Union[OnLost, str, None] = "raise",
                abort: Optional[Abort] = None) -> Lock:
        """Acquires key, and waits for up to `wait` seconds (None: forever; 0: a single attempt).

        ttl: length of the lease. auto_extend: renew the lock in the background. max_hold: hold it at most this long
        (needs auto_extend).
        min_hold: nobody else can acquire the key before this time is over, even if the lock is released earlier.
        slots: the key may have this many holders at a time, 1 to 256; 0: a plain lock.
        retry_unavailable: keep waiting while the store cannot be reached.
        on_lost: with "raise", the `with` statement raises LockLost at its end if the lock was lost. A function is
        called with the lock and the reason, on a thread of the library (needs auto_extend). With None, nothing happens.
        abort: an Abort object that ends the wait. ^C also ends it.
        """
        options = waiting_options(wait, ttl, auto_extend, max_hold, min_hold, slots, retry_unavailable)
        lock = self._take(lib.syncguard_lock_acquire, key, options, on_lost, abort)
        assert lock is not None  # only a single attempt answers "locked"
        return lock

    def try_acquire(self, key: str, *, ttl: Seconds = 30, auto_extend: bool = False,
                    max_hold: Optional[Seconds] = None, min_hold: Seconds = 0, slots: int = 0,
                    on_lost: Union[OnLost, str, None] = "raise") -> Optional[Lock]:
        """One attempt; None if another owner holds the key. The arguments are those of acquire."""
        options = lock_options(ttl, auto_extend, max_hold, min_hold, slots)
        return self._take(lib.syncguard_lock_try, key, options, on_lost, None)

    def is_locked(self, key: str, *, timeout: Optional[Seconds] = None) -> bool:
        """Whether key is held right now. Do not base a change on it: it may be out of date when it is returned."""
        locked = c_bool()
        self._call(lib.syncguard_is_locked, text(key, "key"), limits(timeout), byref(locked))
        return locked.value

    def get(self, key: str, *, timeout: Optional[Seconds] = None) -> Optional[LockInfo]:
        """The live lock of a key; None if there is none."""
        info = LockInfoStruct()
        if self._call(lib.syncguard_get_by_key, text(key, "key"), limits(timeout), byref(info)) == ABSENT:
            return None
        return LockInfo(info.key_hash.decode(), info.lock_id_hash.decode(), info.fence.decode(),
                        info.expires_at_ms / 1000, info.acquired_at_ms / 1000, info.now_ms / 1000)

    def release(self, lock_id: str, *, timeout: Optional[Seconds] = None) -> bool:
        """Releases a detached lock by its id. Returns False if there is no such lock."""
        return self._call(lib.syncguard_release, text(lock_id, "lock id"), limits(timeout)) == OK

    def close(self) -> None:
        """Ends waiting acquires (they raise Aborted), and closes the store when the last lock is released."""
        self._closing.trigger()
        super().close()

    def __enter__(self) -> "Backend":
        return self

    def __exit__(self, *_exception: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return "<syncguard.Backend %s%s>" % (self.name, " closed" if self._owned is None else "")

    def _take(self, function: Any, key: str, options: LockOptions, on_lost: Union[OnLost, str, None],
              abort: Optional[Abort]) -> Optional[Lock]:
        name, interrupt = text(key, "key"), Abort()
        sources = [self._closing, interrupt] + ([abort] if abort is not None else [])
        return interruptible(lambda: self._take_here(function, name, options, on_lost, sources), interrupt)

    def _take_here(self, function: Any, name: bytes, options: LockOptions, on_lost: Union[OnLost, str, None],
                   sources: List[Abort]) -> Optional[Lock]:
        number = 0
        loss: Optional[_Loss] = None
        if callable(on_lost):
            loss, number = _Loss(on_lost), next(_numbers)
            _losses[number] = loss
            options.on_lost, options.on_lost_context = _lost, number
        elif on_lost not in ("raise", None):
            raise InvalidArgument("on_lost is a function, \"raise\" or None")

        owned, lock = Owned(_ends_with(lib.syncguard_lock_dispose, number)), None
        try:
            with aborted_by(sources) as abort_object:
                options.abort_object = abort_object
                status = self._call(function, name, byref(options), byref(owned.out))
            if status == OK:
                lock = Lock(owned, on_lost == "raise", number)
            return lock
        finally:
            if loss is not None:
                if lock is None:
                    _losses.pop(number, None)
                else:
                    loss.lock = weakref.ref(lock)
                loss.ready.set()


def _handle_options(timeout: Seconds, owner: Optional[str]) -> Options:
    options = Options()
    lib.syncguard_options_init(byref(options), sizeof(options))
    options.timeout_ms = milliseconds(timeout, "timeout")
    options.owner = None if owner is None else text(owner, "owner")
    return options


def open(url: Optional[str] = None, *, timeout: Seconds = 5, owner: Optional[str] = None) -> Backend:
    """Opens a store by its URL. Without a URL, this is the store that the command `syncguard` uses.

    timeout: deadline of one operation. owner: a label that shows others who holds a lock.
    """
    details, owned = ErrorDetails(), Owned(lib.syncguard_close)
    options = _handle_options(timeout, owner)
    name = None if url is None else text(url, "URL")
    if lib.syncguard_open(name, byref(options), byref(owned.out), byref(details)) < 0:
        raise failure(details)
    return Backend(owned)


def setup(url: str, *, timeout: Seconds = 5) -> None:
    """Creates the tables that a PostgreSQL store needs. Other stores need none. May be repeated."""
    details, options = ErrorDetails(), _handle_options(timeout, None)
    if lib.syncguard_setup(text(url, "URL"), byref(options), None, None, byref(details)) < 0:
        raise failure(details)
