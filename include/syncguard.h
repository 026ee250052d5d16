/*
 * SyncGuard: one lock interface over the store that a team already runs.
 *
 * This header brings in everything an application needs. Each backend with
 * typed options has a header of its own (syncguard/sqlite.h, ...), which is
 * wanted only by programs that call its constructor instead of opening a URL.
 *
 * Rules that hold for the whole interface:
 *   - Every function that can fail returns a syncguard_status. Zero and the
 *     positive values are answers, negative values are failures.
 *   - A syncguard_error pointer may always be NULL; otherwise every call
 *     overwrites it, on success with SYNCGUARD_OK and empty texts.
 *   - A pointer-to-pointer out parameter hands ownership to the caller; a
 *     returned pointer belongs to the object that it was asked of.
 *   - Options structs begin with their size; start them from the _INIT macro
 *     or the _init() function, then change what you need. A size that is too
 *     small, or larger than the library knows with anything but zeros in the
 *     part it does not know, is InvalidArgument. Result structs do not change
 *     within one major version of the shared library; structs that the library
 *     hands out by pointer may grow at their end.
 *   - Handles may be shared by any number of threads unless a comment says
 *     otherwise. The library never prints, exits, aborts, raises a signal or
 *     installs a signal handler (but for the default release-error handler
 *     described in syncguard/lock.h, which prints one line).
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
