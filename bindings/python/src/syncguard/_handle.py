"""Lifetimes: a C handle is freed once, and never while a call uses it, whatever threads, interrupts, the garbage
collector, fork and the end of the interpreter do.

References do the counting: a call keeps the Owned object that it uses on its stack, so closing only drops a
reference, and the last user frees the handle.
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
    """A C handle that is freed with this object. The library writes it into `out`, so that it has an owner before
    any exception can come in between."""

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
        """Calls function(handle, ..., error); a failure is raised, an answer is returned."""
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
    """Ends waiting acquires from another thread. One-shot: what is triggered stays triggered."""

    def __init__(self) -> None:
        self._lock = threading.RLock()  # a signal handler may trigger while its thread is in here
        self._running: Set[int] = set()
        self._triggered = False
        _aborts.add(self)

    def trigger(self) -> None:
        """Each acquire that was given this object raises Aborted, and so do later ones."""
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
    """A C abort object for one call, which any of the sources triggers."""
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
    """Runs work so that a signal handler that raises, such as ^C's, ends it.

    Python runs handlers in the main thread, between two instructions, never inside a C call. So the main thread
    waits in Python while another one makes the call. A lock that was acquired in spite of an interrupt is released.
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
    """A copy, also while other threads add to it."""
    while True:
        try:
            return list(objects)
        except RuntimeError:  # it changed meanwhile
            pass


def _after_fork_in_child() -> None:
    """Threads of the parent do not exist here: their calls never end, so their handles are never freed."""
    for abort in _all(_aborts):
        abort._lock = threading.RLock()
        abort._running = set()
    for owner in _all(_owners):
        _owners.discard(owner)  # what the parent opened is not closed at the end of this process


def _at_exit() -> None:
    """Ends waiting acquires of daemon threads, releases what is held and closes the stores, so that no thread of
    the library calls into an interpreter that is gone."""
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
