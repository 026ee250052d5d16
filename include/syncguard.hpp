/*
 * SyncGuard for C++17: header-only, over the C library (link libsyncguard as a C program does).
 *
 *     auto store = syncguard::backend::open("redis://cache.example");
 *     auto lock = store.acquire("nightly-billing", syncguard::lock_options().wait(60s));
 *     work(lock.fence());
 *     // released at the end of the scope, also when work throws
 *
 * Rules that hold for all of it:
 *   - Every function that can fail has two forms: one throws syncguard::error, the other sets a
 *     std::error_code, which comes last. "Locked" and "absent" are answers, not errors: an empty
 *     optional, or false.
 *   - Handles are move-only. A moved-from handle is empty: it can be destroyed, assigned to and
 *     tested with if (handle); operations on it are InvalidArgument.
 *   - Destructors never throw. A release that fails there goes to on_release_error.
 *   - Text is std::string_view. One with a NUL inside is InvalidArgument, as is a key of more than
 *     SYNCGUARD_MAX_RAW_KEY_BYTES. Returned views live as long as their lock.
 *   - Durations are std::chrono::milliseconds: seconds and hours convert, microseconds do not.
 *   - get() gives the C handle, for what has no wrapper; it stays owned by the object.
 */
#ifndef SYNCGUARD_HPP
#define SYNCGUARD_HPP

#include "syncguard/backend.hpp"
#include "syncguard/error.hpp"
#include "syncguard/lock.hpp"
#include "syncguard/options.hpp"
#include "syncguard/queue.hpp"

#endif
