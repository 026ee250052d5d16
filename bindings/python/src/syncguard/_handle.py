"""Lifetimes: a C handle is freed exactly once, and never while a call uses it. This holds for any interleaving of
threads, interrupts, garbage collection, fork and the end of the interpreter.

Python's reference counts ensure this: a call has a reference to the Owned object that it uses, so closing only drops
another reference, and the handle is freed with the last one.
"""

import atexit
import os
import threading
import time
import weakref
from contextlib import contextmanager
from ctypes import byref, c_void_p
from typing import Any, Callable, Iterator, List, Optional, Set, TypeVar

from ._errors import InvalidArgument
from ._library import ErrorDetails, failure, lib


class Owned:
    """A C handle that is freed with this object. The library writes the handle directly into `out`, so that no
    exception can come between its creation and its ownership."""

    def __init__(self, free: Callable[[int], None]) -> None:
        self.out, self.free = c_void_p(), free

    @property
    def pointer(self) -> int:
        return int(self.out.value or 0)

    def __del__(self) -> None:
        if self.out.value is not None:
            self.free(self.out.value)


class Owner:
    """A Python object over a C handle."""

    _owned: Optional[Owned]

    def __init__(self, owned: Owned) -> None:
        self._owned = owned
        _owners.add(self)

    def _call(self, function: Any, *arguments: Any) -> int:
        """Calls function(handle, ..., error). Raises a failure, and returns any other status."""
        owned, details = self._owned, ErrorDetails()
        if owned is None:
            raise InvalidArgument("the %s is closed" % type(self).__name__.lower())
        status = int(function(owned.pointer, *arguments, byref(details)))
        del owned  # a traceback keeps the variables of its frames
        if status < 0:
            raise failure(details)
        return status

    def close(self) -> None:
        """Frees the handle, now or when the last call that uses it has returned."""
        self._owned = None


Result = TypeVar("Result", bound=Optional[Owner])


class Abort:
    """Ends waiting acquires from another thread. Once triggered, it stays triggered."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a signal handler may trigger while its thread is in here
        self._running: Set[int] = set()
        self._triggered = False
        _aborts.add(self)

    def trigger(self) -> None:
        """All acquires that were given this object raise Aborted, and so do later ones."""
        with self._lock:
            self._triggered = True
            for pointer in self._running:
                lib.syncguard_abort_trigger(pointer)

    @property
    def triggered(self) -> bool:
        return self._triggered

    def _add(self, pointer: int) -> None:
        with self._lock:
            self._running.add(pointer)
            if self._triggered:
                lib.syncguard_abort_trigger(pointer)

    def _remove(self, pointer: int) -> None:
        with self._lock:
            self._running.discard(pointer)


@contextmanager
def aborted_by(sources: List[Abort]) -> Iterator[int]:
    """A C abort object for one call. Each of the sources can trigger it."""
    details, made = ErrorDetails(), c_void_p()
    if lib.syncguard_abort_create(byref(made), byref(details)) < 0:
        raise failure(details)
    pointer = int(made.value or 0)
    try:
        for source in sources:
            source._add(pointer)
        yield pointer
    finally:
        for source in sources:
            source._remove(pointer)
        lib.syncguard_abort_free(pointer)


def interruptible(work: Callable[[], Result], interrupt: Abort) -> Result:
    """Runs work, and ends it if a signal handler raises an exception, as that of ^C does.

    Python runs signal handlers in the main thread, between two instructions, never inside a C call. So another thread
    makes the call while the main thread waits in Python. If a lock is acquired despite the interrupt, it is released.
    """
    if threading.current_thread() is not threading.main_thread():
        return work()
    results: List[Result] = []
    errors: List[BaseException] = []
    done = threading.Event()

    def run() -> None:
        try:
            results.append(work())
            if interrupt.triggered:
                drop(results)
        except BaseException as error:  # the main thread raises it
            errors.append(error)
        finally:
            done.set()

    try:
        threading.Thread(target=run, name="syncguard-acquire", daemon=True).start()
        done.wait()
    except BaseException:
        interrupt.trigger()
        done.wait(1.0)
        drop(results)
        raise
    if errors:
        raise errors.pop()
    return results.pop()


def drop(results: List[Result]) -> None:
    while results:
        owner: Optional[Owner] = results.pop()
        if owner is not None:
            owner.close()


_owners: "weakref.WeakSet[Owner]" = weakref.WeakSet()
_aborts: "weakref.WeakSet[Abort]" = weakref.WeakSet()
exiting = threading.Event()


def _all(objects: "weakref.WeakSet[Any]") -> List[Any]:
    """A copy that can be made while other threads add to the set."""
    while True:
        try:
            return list(objects)
        except RuntimeError:  # it changed meanwhile
            pass


def _after_fork_in_child() -> None:
    """The parent's threads do not exist in the child: their calls never return, so their handles are never freed."""
    for abort in _all(_aborts):
        abort._lock = threading.RLock()
        abort._running = set()
    for owner in _all(_owners):
        _owners.discard(owner)  # the parent's handles are not closed at the end of this process


def _at_exit() -> None:
    """Ends waiting acquires of daemon threads, releases held locks and closes the stores, so that no thread of the
    library calls into an interpreter that no longer exists."""
    for abort in _all(_aborts):
        abort.trigger()
    deadline = time.monotonic() + 1.0
    while any(abort._running for abort in _all(_aborts)) and time.monotonic() < deadline:
        time.sleep(0.005)
    for owner in _all(_owners):
        owner.close()
    exiting.set()


os.register_at_fork(after_in_child=_after_fork_in_child)
atexit.register(_at_exit)
