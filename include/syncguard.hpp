/*
 * SyncGuard for C++17: a header-only interface to the C library (link libsyncguard as a C program
 * does).
 *
 *     auto store = syncguard::backend::open("redis://cache.example");
 *     auto lock = store.acquire("nightly-billing", syncguard::lock_options().wait(60s));
 *     work(lock.fence());
 *     // released at the end of the scope, even if work throws
 *
 * Rules that hold for the whole interface:
 *   - Every function that can fail has two forms: one throws syncguard::error, the other sets a
 *     std::error_code, which is its last argument. (with_lock only throws, as its work may.)
 *     "Locked" and "absent" are results, not errors: an empty optional, or false.
 *   - Handles are move-only. A moved-from handle is empty: it can be destroyed, assigned to and
 *     tested with if (handle); operations on it are InvalidArgument.
 *   - Destructors never throw. A release that fails there goes to on_release_error.
 *   - Text is std::string_view. Text that contains a NUL is InvalidArgument, and so is a key of
 *     more than SYNCGUARD_MAX_RAW_KEY_BYTES. Returned views are valid as long as their lock.
 *   - Durations are std::chrono::milliseconds: seconds and hours convert, microseconds do not.
 *   - get() returns the C handle, for functions without a wrapper; the object keeps its ownership.
 */
#ifndef SYNCGUARD_HPP
#define SYNCGUARD_HPP

#include "syncguard/backend.hpp"
#include "syncguard/completion.hpp"
#include "syncguard/error.hpp"
#include "syncguard/lock.hpp"
#include "syncguard/options.hpp"
#include "syncguard/queue.hpp"

#endif
