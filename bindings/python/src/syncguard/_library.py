"""The shared library through ctypes: structs, functions, and checks that they match the library.

No compiler compares these declarations with the headers. Loading compares what can be seen at run time: the
version, the constants, the defaults that the library writes into our options structs, and where it writes an
error. The test suite compares every offset with the headers.
"""

import ctypes
from ctypes import (CFUNCTYPE, POINTER, Structure, byref, c_bool, c_char, c_char_p, c_int, c_int64, c_size_t,
                    c_uint64, c_void_p)
from typing import Any

from ._errors import BY_STATUS, Error, Internal, InvalidArgument

NAME = "libsyncguard.so.0"
VERSION = "0.1."  # before 1.0 a minor version may change the interface
CONSTANTS = {"max_key_bytes": 512, "max_raw_key_bytes": 4096, "default_ttl_ms": 30000, "time_tolerance_ms": 1000,
             "default_timeout_ms": 5000, "max_time_ms": 2**53 - 1, "fence_max": 900000000000000}

OK, LOCKED, ABSENT = 0, 1, 2
WAIT_FOREVER = -1
ACQUIRE, RELEASE, EXTEND, LOST = 1, 2, 3, 4  # kinds of completions

LostFn = CFUNCTYPE(None, c_void_p, c_void_p, c_int)


class Constants(Structure):
    _fields_ = [("version", c_char_p)] + [(name, c_int64) for name in (
        "max_key_bytes", "max_raw_key_bytes", "default_ttl_ms", "time_tolerance_ms", "default_timeout_ms",
        "max_time_ms", "fence_max")]


class ErrorDetails(Structure):
    _fields_ = [("code", c_int), ("native", c_char * 32), ("key_hash", c_char * 25), ("message", c_char * 256)]


class Options(Structure):
    _fields_ = [("size", c_size_t), ("timeout_ms", c_int64), ("dispose_timeout_ms", c_int64), ("owner", c_char_p),
                ("cleanup_in_is_locked", c_bool), ("log", c_void_p), ("log_context", c_void_p),
                ("on_release_error", c_void_p), ("on_release_error_context", c_void_p), ("hash_secret", c_char_p)]


class Call(Structure):
    _fields_ = [("size", c_size_t), ("abort_object", c_void_p), ("timeout_ms", c_int64)]


class LockOptions(Structure):
    _fields_ = [("size", c_size_t), ("ttl_ms", c_int64), ("max_retries", c_int), ("retry_delay_ms", c_int64),
                ("backoff", c_int), ("jitter", c_int), ("timeout_ms", c_int64), ("retry_unavailable", c_bool),
                ("auto_extend", c_bool), ("max_hold_ms", c_int64), ("abort_object", c_void_p), ("on_lost", LostFn),
                ("on_lost_context", c_void_p), ("on_wait", c_void_p), ("on_wait_context", c_void_p),
                ("on_release_error", c_void_p), ("on_release_error_context", c_void_p), ("min_hold_ms", c_int64),
                ("abort_on_lost", c_void_p), ("slots", c_int)]


class LockInfoStruct(Structure):
    _fields_ = [("key_hash", c_char * 25), ("lock_id_hash", c_char * 25), ("fence", c_char * 16),
                ("expires_at_ms", c_int64), ("acquired_at_ms", c_int64), ("now_ms", c_int64)]


class Capabilities(Structure):
    _fields_ = [("backend", c_char_p), ("supports_fencing", c_bool), ("time_authority", c_int),
                ("wakes_waiters", c_bool), ("is_shared", c_bool), ("keeps_expired", c_bool), ("works_in_child", c_bool)]


class Completion(Structure):
    _fields_ = [("kind", c_int), ("status", c_int), ("request", c_uint64), ("context", c_void_p), ("lock", c_void_p),
                ("lost", c_int), ("expires_at_ms", c_int64), ("error", ErrorDetails)]


ErrorPointer = POINTER(ErrorDetails)
FUNCTIONS = {
    # name: (result, arguments); handles are void pointers
    "syncguard_constants_get": (POINTER(Constants), []),
    "syncguard_options_init": (None, [POINTER(Options), c_size_t]),
    "syncguard_call_init": (None, [POINTER(Call), c_size_t]),
    "syncguard_lock_options_init": (None, [POINTER(LockOptions), c_size_t]),
    "syncguard_open": (c_int, [c_char_p, POINTER(Options), POINTER(c_void_p), ErrorPointer]),
    "syncguard_close": (None, [c_void_p]),
    "syncguard_setup": (c_int, [c_char_p, POINTER(Options), c_void_p, c_void_p, ErrorPointer]),
    "syncguard_capabilities_get": (POINTER(Capabilities), [c_void_p]),
    "syncguard_is_locked": (c_int, [c_void_p, c_char_p, POINTER(Call), POINTER(c_bool), ErrorPointer]),
    "syncguard_get_by_key": (c_int, [c_void_p, c_char_p, POINTER(Call), POINTER(LockInfoStruct), ErrorPointer]),
    "syncguard_release": (c_int, [c_void_p, c_char_p, POINTER(Call), ErrorPointer]),
    "syncguard_abort_create": (c_int, [POINTER(c_void_p), ErrorPointer]),
    "syncguard_abort_trigger": (None, [c_void_p]),
    "syncguard_abort_free": (None, [c_void_p]),
    "syncguard_lock_acquire": (c_int, [c_void_p, c_char_p, POINTER(LockOptions), POINTER(c_void_p), ErrorPointer]),
    "syncguard_lock_try": (c_int, [c_void_p, c_char_p, POINTER(LockOptions), POINTER(c_void_p), ErrorPointer]),
    "syncguard_lock_key": (c_char_p, [c_void_p]),
    "syncguard_lock_id": (c_char_p, [c_void_p]),
    "syncguard_lock_fence": (c_char_p, [c_void_p]),
    "syncguard_lock_slot": (c_int, [c_void_p]),
    "syncguard_lock_expires_at_ms": (c_int64, [c_void_p]),
    "syncguard_lock_remaining_ms": (c_int64, [c_void_p]),
    "syncguard_lock_held": (c_bool, [c_void_p]),
    "syncguard_lock_lost": (c_int, [c_void_p]),
    "syncguard_lost_reason_name": (c_char_p, [c_int]),
    "syncguard_lock_release": (c_int, [c_void_p, POINTER(Call), ErrorPointer]),
    "syncguard_lock_extend": (c_int, [c_void_p, c_int64, POINTER(Call), POINTER(c_int64), ErrorPointer]),
    "syncguard_lock_dispose": (None, [c_void_p]),
    "syncguard_lock_detach": (None, [c_void_p]),
    "syncguard_queue_open": (c_int, [c_void_p, c_void_p, POINTER(c_void_p), ErrorPointer]),
    "syncguard_queue_close": (None, [c_void_p]),
    "syncguard_queue_fd": (c_int, [c_void_p]),
    "syncguard_queue_next": (c_bool, [c_void_p, POINTER(Completion)]),
    "syncguard_queue_cancel": (c_bool, [c_void_p, c_uint64]),
    "syncguard_lock_acquire_async": (c_int, [c_void_p, c_char_p, POINTER(LockOptions), c_void_p, POINTER(c_uint64),
                                             ErrorPointer]),
    "syncguard_lock_release_async": (c_int, [c_void_p, c_void_p, POINTER(Call), c_void_p, POINTER(c_uint64),
                                             ErrorPointer]),
    "syncguard_lock_extend_async": (c_int, [c_void_p, c_void_p, c_int64, POINTER(Call), c_void_p, POINTER(c_uint64),
                                            ErrorPointer]),
}


class _Guarded(Structure):
    _fields_ = [("details", ErrorDetails), ("after", c_char * 64)]


def _check(library: Any) -> None:
    """Raises ImportError unless these declarations match the library."""
    constants = library.syncguard_constants_get().contents
    found = constants.version.decode()
    if not found.startswith(VERSION):
        raise ImportError("%s is version %s; this package needs %sx" % (NAME, found, VERSION))
    wrong = [name for name, value in CONSTANTS.items() if getattr(constants, name) != value]
    options, lock_options, call = Options(), LockOptions(), Call()
    library.syncguard_options_init(byref(options), ctypes.sizeof(options))
    library.syncguard_lock_options_init(byref(lock_options), ctypes.sizeof(lock_options))
    library.syncguard_call_init(byref(call), ctypes.sizeof(call))
    if (options.size, options.timeout_ms, options.hash_secret) != (ctypes.sizeof(options), 5000, None):
        wrong.append("syncguard_options")
    if (lock_options.size, lock_options.ttl_ms, lock_options.max_retries, lock_options.retry_delay_ms,
            lock_options.timeout_ms) != (ctypes.sizeof(lock_options), 30000, 10, 100, 5000):
        wrong.append("syncguard_lock_options")
    if (call.size, call.abort_object, call.timeout_ms) != (ctypes.sizeof(call), None, 0):
        wrong.append("syncguard_call")
    guarded = _Guarded()
    ctypes.memset(byref(guarded), 0x55, ctypes.sizeof(guarded))
    out = c_void_p()
    status = library.syncguard_lock_acquire(None, b"key", None, byref(out), byref(guarded.details))
    if status != -3 or guarded.details.code != -3 or guarded.details.native != b"" or \
            not guarded.details.message.isascii() or guarded.after != b"\x55" * 64:
        wrong.append("syncguard_error")
    if wrong:
        raise ImportError("%s does not fit this package: %s" % (NAME, ", ".join(wrong)))


def load(name: str = NAME) -> Any:
    """Loads the library by the rules of the dynamic linker. Calls release the interpreter lock."""
    try:
        library = ctypes.CDLL(name)
        for function, (result, arguments) in FUNCTIONS.items():
            getattr(library, function).restype = result
            getattr(library, function).argtypes = arguments
    except (OSError, AttributeError) as error:
        raise ImportError("%s cannot be used: %s" % (name, error)) from error
    _check(library)
    return library


lib = load()


def version() -> str:
    return str(lib.syncguard_constants_get().contents.version.decode())


def failure(details: ErrorDetails) -> Error:
    """The exception of a failed call."""
    return BY_STATUS.get(details.code, Internal)(details.message.decode("utf-8", "replace"), details.native.decode(),
                                                 details.key_hash.decode())


def text(value: str, what: str) -> bytes:
    """The text as the library takes it: UTF-8 that ends in a NUL, with no other NUL."""
    if not isinstance(value, str):
        raise TypeError("%s must be a str, not %s" % (what, type(value).__name__))
    try:
        encoded = value.encode("utf-8")
    except UnicodeEncodeError:
        raise InvalidArgument("the %s is no valid Unicode" % what) from None
    if b"\0" in encoded:
        raise InvalidArgument("the %s has a NUL inside" % what)
    return encoded
