"""Locks for asyncio. A waiting acquire needs memory, but no thread.

    import syncguard.aio

    async with syncguard.aio.open("redis://cache.example") as store:
        async with store.lock("nightly-billing", wait=60, auto_extend=True) as lock:
            await work(lock.fence)

A store and its locks belong to the event loop in which they are used first. Requests go through the library's
completion queue, whose descriptor the loop watches.
"""

import asyncio
import logging
import weakref
from ctypes import byref, c_uint64
from types import TracebackType
from typing import Any, Callable, Dict, Optional, Tuple, Type, Union

from ._backend import Backend, Seconds, limits, milliseconds, reason_name, waiting_options
from ._backend import open as open_backend
from ._errors import Aborted, Error, InvalidArgument, LockLost
from ._handle import Owned
from ._library import ACQUIRE, LOST, OK, Completion, ErrorDetails, failure, lib, text

__all__ = ["AsyncBackend", "AsyncLock", "open"]

OnLost = Callable[["AsyncLock", str], None]
_logger = logging.getLogger("syncguard")


class AsyncLock:
    """A lock that is held: `await lock.release()`, or see AsyncBackend.lock."""

    def __init__(self, store: "AsyncBackend", owned: Owned) -> None:
        self._store = store
        self._owned: Optional[Owned] = owned
        self._on_lost: Optional[OnLost] = None
        self.key = str(lib.syncguard_lock_key(owned.pointer).decode())
        self.id = str(lib.syncguard_lock_id(owned.pointer).decode())
        self.fence = str(lib.syncguard_lock_fence(owned.pointer).decode())
        self.slot = int(lib.syncguard_lock_slot(owned.pointer))
        self._last_loss: Optional[str] = None
        self._reported_loss: Optional[str] = None  # by a completion

    @property
    def held(self) -> bool:
        """True while this process holds the lock: it is neither released nor lost, and its lease has not ended."""
        return self._owned is not None and bool(lib.syncguard_lock_held(self._owned.pointer))

    @property
    def lost(self) -> Optional[str]:
        """Why the lock is lost: "absent", "unconfirmed", "max-hold", "forked"; None if it is not."""
        if self._owned is None:
            return self._last_loss
        reason = lib.syncguard_lock_lost(self._owned.pointer)
        return reason_name(reason) if reason else None

    @property
    def remaining(self) -> float:
        """Seconds until the lease ends, by the clock of this machine."""
        return 0.0 if self._owned is None else float(lib.syncguard_lock_remaining_ms(self._owned.pointer)) / 1000

    async def extend(self, ttl: Seconds, *, timeout: Optional[Seconds] = None) -> bool:
        """Extends the lock now. Returns False if the lock is lost."""
        if self._owned is None:
            raise InvalidArgument("the lock is closed")
        done = await self._store._request(lib.syncguard_lock_extend_async, self._owned.pointer,
                                          milliseconds(ttl, "ttl"), limits(timeout))
        return bool(done.status == OK)

    async def release(self, *, timeout: Optional[Seconds] = None) -> bool:
        """Releases the lock. Returns True if this call released it, False if it was no longer held. The release is
        started before the first wait, so it need not be repeated if the task is cancelled while it waits."""
        future = self._start_release(timeout)
        return future is not None and bool((await future).status == OK)

    def _start_release(self, timeout: Optional[Seconds]) -> Optional["asyncio.Future[Any]"]:
        owned = self._owned
        if owned is None:
            return None
        self._last_loss, self._owned = self.lost, None
        _, future = self._store._start(lib.syncguard_lock_release_async, owned.pointer, limits(timeout))
        owned.out.value = None  # it is the library's now
        return future

    def _report_loss(self, reason: str) -> None:
        """Called once, when the completion is read."""
        self._reported_loss = reason
        if self._on_lost is not None:
            self._on_lost(self, reason)

    def _watch(self, on_lost: OnLost) -> None:
        """The event loop calls on_lost, even if the loss was read together with the grant."""
        self._on_lost = on_lost
        if self._reported_loss is not None:
            asyncio.get_running_loop().call_soon(on_lost, self, self._reported_loss)


class _Scope:
    """async with store.lock(...)"""

    def __init__(self, store: "AsyncBackend", arguments: Dict[str, Any], on_lost: Union[OnLost, str, None]) -> None:
        if on_lost not in ("raise", None) and not callable(on_lost):
            raise InvalidArgument("on_lost is a function, \"raise\" or None")
        self._store, self._arguments, self._on_lost = store, arguments, on_lost
        self._lock: Optional[AsyncLock] = None
        self._task: Optional["asyncio.Task[Any]"] = None
        self._cancelled = False

    def _cancel(self, _lock: AsyncLock, _reason: str) -> None:
        if self._task is not None:
            self._cancelled = True
            self._task.cancel()

    async def __aenter__(self) -> AsyncLock:
        lock = self._lock = await self._store.acquire(**self._arguments)
        self._task = asyncio.current_task()
        if callable(self._on_lost):
            lock._watch(self._on_lost)
        elif self._on_lost == "raise":
            if lock.lost is not None:  # while the loop was busy: the body does not begin
                await self.__aexit__(None, None, None)  # raises LockLost
            lock._watch(self._cancel)
        return lock

    async def __aexit__(self, kind: Optional[Type[BaseException]], value: Optional[BaseException],
                        _traceback: Optional[TracebackType]) -> None:
        lock, task = self._lock, self._task
        assert lock is not None and task is not None
        self._task, was_open = None, lock._owned is not None
        try:
            if not await lock.release() and was_open and lock.lost is None:
                lock._last_loss = "absent"
        except asyncio.CancelledError:
            if not self._cancelled:
                raise
        except Error as error:
            _logger.warning("a lock could not be released, its lease ends it: %s", error)
        reason = lock.lost
        if self._on_lost != "raise" or reason is None:
            return
        others = task.uncancel() if self._cancelled and hasattr(task, "uncancel") else 0
        if others == 0 and (kind is None or (self._cancelled and issubclass(kind, asyncio.CancelledError))):
            raise LockLost(reason) from None


class AsyncBackend:
    """An open store. Close it, or use it in an `async with` statement; closing releases its locks."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._loop: Optional[asyncio.AbstractEventLoop] = None
        self._queue: Optional[Owned] = None
        self._fd = -1
        self._open: Dict[int, "asyncio.Future[Any]"] = {}
        self._locks: "weakref.WeakValueDictionary[int, AsyncLock]" = weakref.WeakValueDictionary()
        self._closing: Optional["asyncio.Task[None]"] = None

    async def acquire(self, key: str, *, wait: Optional[Seconds] = 5, ttl: Seconds = 30, auto_extend: bool = False,
                      max_hold: Optional[Seconds] = None, min_hold: Seconds = 0, slots: int = 0,
                      retry_unavailable: bool = False) -> AsyncLock:
        """Acquires key, and waits for up to `wait` seconds (None: forever; 0: a single attempt). Cancelling the task
        ends the wait. The arguments are those of syncguard.Backend.acquire."""
        options = waiting_options(wait, ttl, auto_extend, max_hold, min_hold, slots, retry_unavailable)
        lock = await self._request(lib.syncguard_lock_acquire_async, text(key, "key"), byref(options))
        assert isinstance(lock, AsyncLock)
        if self._closing is not None and lock._owned is None:  # released between its grant and this line
            raise Aborted("the store was closed")
        return lock

    def lock(self, key: str, *, on_lost: Union[OnLost, str, None] = "raise", **arguments: Any) -> _Scope:
        """Holds key in an `async with` statement. The other arguments are those of acquire.

        on_lost (needs auto_extend): with "raise", the body is cancelled as soon as the lock is lost, and the statement
        raises LockLost. A function is called by the event loop with the lock and the reason. With None, nothing
        happens.
        """
        return _Scope(self, dict(arguments, key=key), on_lost)

    async def close(self) -> None:
        """Ends waiting acquires (they raise Aborted), releases locks that are still held, and closes the store. From
        its start on, acquires and extends raise InvalidArgument. If the task is cancelled while it waits, the store is
        closed in the background."""
        loop, closing = asyncio.get_running_loop(), self._closing
        begun = closing is not None and (closing.done() or not closing.get_loop().is_closed())
        if closing is None or closing.cancelled() or not begun:  # cancelled: its loop ended before its first step
            self._refuse_other_loop(loop, self._loop)
            self._end_requests()
            closing = self._closing = loop.create_task(self._close())
        if not closing.done():
            self._refuse_other_loop(loop, closing.get_loop())
            await asyncio.shield(closing)

    @staticmethod
    def _refuse_other_loop(running: asyncio.AbstractEventLoop, owner: Optional[asyncio.AbstractEventLoop]) -> None:
        if owner is not None and owner is not running and not owner.is_closed():
            raise InvalidArgument("the store is used by another event loop")

    async def _close(self) -> None:
        """Only releases start from now on, so the number of open requests falls. The future of a cancelled task is done
        before its request is; closing the queue ends that. Futures of a loop that was closed would never be done."""
        try:
            while self._loop is asyncio.get_running_loop():
                waiting = [future for future in self._open.values() if not future.done()]
                if not waiting:
                    break
                await asyncio.wait(waiting)
        except asyncio.CancelledError:
            pass  # the loop is ending: nobody else has this task
        finally:
            self._close_now()

    def _end_requests(self) -> None:
        if self._queue is None:
            return
        if self._loop is not asyncio.get_running_loop():  # no completion can be read any more
            for lock in list(self._locks.values()):
                lock._last_loss, lock._owned = lock.lost, None  # releases it
            return
        for request in list(self._open):
            lib.syncguard_queue_cancel(self._queue.pointer, request)
        for lock in list(self._locks.values()):
            try:
                release = lock._start_release(None)
            except Error as error:
                _logger.warning("a lock could not be released, its lease ends it: %s", error)
            else:
                if release is not None:  # nobody awaits it
                    release.add_done_callback(lambda done: done.cancelled() or done.exception())

    def _close_now(self) -> None:
        """Aborts the requests that are still open, so that every call returns."""
        if self._queue is not None and self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(self._fd)
            for future in self._open.values():
                if not future.done():
                    future.set_exception(Aborted("the store was closed"))
                    future.exception()  # so that asyncio does not log those that nobody awaits
        self._open.clear()
        self._queue = None
        self._backend.close()

    async def __aenter__(self) -> "AsyncBackend":
        return self

    async def __aexit__(self, *_exception: object) -> None:
        await self.close()

    # ---- requests ----

    def _opened(self) -> Owned:
        if self._queue is None:
            queue = Owned(lib.syncguard_queue_close)
            self._loop = asyncio.get_running_loop()
            self._backend._call(lib.syncguard_queue_open, None, byref(queue.out))
            self._fd = lib.syncguard_queue_fd(queue.pointer)
            self._loop.add_reader(self._fd, self._read)
            self._queue = queue
        elif self._loop is not asyncio.get_running_loop():
            raise InvalidArgument("the store is used by another event loop")
        return self._queue

    def _start(self, function: Any, *arguments: Any) -> Tuple[int, "asyncio.Future[Any]"]:
        """Starts a request. Only this thread takes completions, so the future is registered before its completion."""
        queue, request, details = self._opened(), c_uint64(), ErrorDetails()
        if function(queue.pointer, *arguments, None, byref(request), byref(details)) < 0:
            raise failure(details)
        assert self._loop is not None
        future: "asyncio.Future[Any]" = self._loop.create_future()
        self._open[request.value] = future
        return request.value, future

    async def _request(self, function: Any, *arguments: Any) -> Any:
        """A request that ends early if the task is cancelled. Returns its completion; of an acquire, the lock."""
        if self._closing is not None:
            raise InvalidArgument("the store is closed")
        request, future = self._start(function, *arguments)
        try:
            return await future
        except asyncio.CancelledError:
            if not future.cancelled() and future.exception() is None:
                if isinstance(future.result(), AsyncLock):
                    future.result()._owned = None  # gives it back; a traceback may keep the future
            elif self._queue is not None:
                lib.syncguard_queue_cancel(self._queue.pointer, request)
            raise

    def _read(self) -> None:
        """Takes the completions; called by the event loop."""
        while self._queue is not None:
            done = Completion()
            if not lib.syncguard_queue_next(self._queue.pointer, byref(done)):
                return
            if done.kind == LOST:
                lock = self._locks.get(done.request)
                if lock is not None:
                    lock._report_loss(reason_name(done.lost))
                continue
            future = self._open.pop(done.request, None)
            if future is None or future.done():
                self._drop(done)
            elif done.status < 0:
                future.set_exception(failure(done.error))
            else:
                future.set_result(self._granted(done) if done.kind == ACQUIRE else done)

    def _granted(self, done: Completion) -> AsyncLock:
        """The lock of an acquire. It is known before its task resumes, because its loss may be read before that."""
        owned = Owned(self._give_back)
        owned.out.value = done.lock
        lock = AsyncLock(self, owned)
        self._locks[done.request] = lock
        return lock

    def _drop(self, done: Completion) -> None:
        """Releases a lock that was granted to a task that no longer waits for it."""
        if done.kind == ACQUIRE and done.status == OK:
            self._give_back(done.lock)

    def _give_back(self, pointer: int) -> None:
        """Releases a lock without waiting for the store while the queue is open."""
        queue = self._queue
        if queue is None or lib.syncguard_lock_release_async(queue.pointer, pointer, None, None, None, None) != OK:
            lib.syncguard_lock_dispose(pointer)


def open(url: Optional[str] = None, *, timeout: Seconds = 5, owner: Optional[str] = None) -> AsyncBackend:
    """Opens a store by its URL, as syncguard.open does."""
    return AsyncBackend(open_backend(url, timeout=timeout, owner=owner))
