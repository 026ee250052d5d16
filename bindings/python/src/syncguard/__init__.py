"""Locks that work across processes and machines, in a store that you already run.

    import syncguard

    with syncguard.open("redis://cache.example") as store:
        with store.acquire("nightly-billing", wait=60, auto_extend=True) as lock:
            work(lock.fence)

Times are seconds (int or float) or datetime.timedelta. Each kind of failure has its own subclass of syncguard.Error.
Backends and locks may be shared by threads; other threads run while a call waits.
"""

from ._backend import Backend, Lock, LockInfo, open, setup
from ._errors import (Aborted, AcquisitionTimeout, AuthFailed, Error, Internal, InvalidArgument, LockLost,
                      NetworkTimeout, OutOfMemory, RateLimited, ServiceUnavailable)
from ._handle import Abort
from ._library import version

__version__ = version()

__all__ = [
    "Abort", "Aborted", "AcquisitionTimeout", "AuthFailed", "Backend", "Error", "Internal", "InvalidArgument",
    "Lock", "LockInfo", "LockLost", "NetworkTimeout", "OutOfMemory", "RateLimited", "ServiceUnavailable", "open",
    "setup",
]
