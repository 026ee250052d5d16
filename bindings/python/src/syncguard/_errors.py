"""One exception per status of the library."""

from typing import Any, Dict, Tuple, Type


class Error(Exception):
    """A failure. Programs should check the class and `native`; the text is for people.

    native: the store's own code (SQLSTATE, "NOAUTH", an HTTP status), or "".
    key_hash: hash of the key that the operation was about, or "".
    """

    def __init__(self, message: str, native: str = "", key_hash: str = "") -> None:
        super().__init__(message)
        self.message, self.native, self.key_hash = message, native, key_hash

    def __str__(self) -> str:
        return self.message

    def __reduce__(self) -> Tuple[Any, ...]:  # for pickle, which concurrent.futures and multiprocessing use
        return type(self), (self.message, self.native, self.key_hash)


class ServiceUnavailable(Error):
    """The store cannot be reached, or cannot serve the request now."""


class AuthFailed(Error):
    """Credentials or permissions were refused."""


class InvalidArgument(Error, ValueError):
    """An argument or option is not acceptable."""


class RateLimited(Error):
    """A quota or a connection limit was reached."""


class NetworkTimeout(Error, TimeoutError):
    """The operation's deadline passed."""


class AcquisitionTimeout(Error, TimeoutError):
    """Another owner still held the lock when the wait ended."""


class Aborted(Error):
    """The abort object was triggered, or the backend was closed."""


class Internal(Error):
    """Unexpected data or an unclassified failure."""


class OutOfMemory(Error, MemoryError):
    """Memory could not be allocated."""


class LockLost(Error):
    """The lock was lost while it was in use; `reason` is "absent", "unconfirmed", "max-hold" or "forked"."""

    def __init__(self, reason: str) -> None:
        super().__init__("the lock was lost: " + reason)
        self.reason = reason

    def __reduce__(self) -> Tuple[Any, ...]:
        return LockLost, (self.reason,)


BY_STATUS: Dict[int, Type[Error]] = {
    -1: ServiceUnavailable, -2: AuthFailed, -3: InvalidArgument, -4: RateLimited, -5: NetworkTimeout,
    -6: AcquisitionTimeout, -7: Aborted, -8: Internal, -9: OutOfMemory,
}
