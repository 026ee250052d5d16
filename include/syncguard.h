/*
 * SyncGuard: one lock interface to the store that you already run.
 *
 * This header includes everything that an application needs. Each backend with typed options has a
 * separate header (syncguard/sqlite.h, ...), which is needed only to call its constructor instead
 * of opening a URL, or to link its static library.
 *
 * Rules that hold for the whole interface:
 *   - Every function that can fail returns a syncguard_status. Zero and positive values are
 *     results, negative values are failures.
 *   - A syncguard_error pointer may always be NULL; otherwise every call
 *     overwrites it, on success with SYNCGUARD_OK and empty texts.
 *   - A pointer-to-pointer out parameter passes ownership to the caller; a returned pointer belongs
 *     to the object that the function was called for.
 *   - Options structs begin with their size. Initialize them with the _INIT macro or the _init()
 *     function, then change what you need. A struct of an earlier header is accepted, with the
 *     defaults for the members that it lacks. A size smaller than that of the first version is
 *     InvalidArgument. So is a size larger than the library knows, unless the part that it does
 *     not know contains only zeros. Result structs do not change within one major version of the
 *     shared library; structs that the library returns by pointer may grow at their end.
 *   - A callback must return: it must not throw a C++ exception, call longjmp or end its thread.
 *     The work of syncguard_with_lock may throw, and end its thread.
 *   - Handles may be shared by any number of threads unless a comment says otherwise. The library
 *     never exits, aborts, raises a signal or installs a signal handler. It never prints, except
 *     for the default release-error handler described in syncguard/lock.h, which prints one line.
 */
#ifndef SYNCGUARD_H
#define SYNCGUARD_H

#include "syncguard/abort.h"
#include "syncguard/backend.h"
#include "syncguard/diagnostics.h"
#include "syncguard/error.h"
#include "syncguard/lock.h"
#include "syncguard/lock_set.h"
#include "syncguard/memory.h"
#include "syncguard/queue.h"
#include "syncguard/slots.h"
#include "syncguard/telemetry.h"
#include "syncguard/types.h"

#endif
