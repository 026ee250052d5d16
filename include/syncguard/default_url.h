/* Where the URL of a store comes from if the program does not contain it. */
#ifndef SYNCGUARD_DEFAULT_URL_H
#define SYNCGUARD_DEFAULT_URL_H

#include "options.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Writes the URL of this user's default store, which is also that of the command, to buffer. It is
 * the value of the environment variable SYNCGUARD_URL (a URL, or @ and the name of a file), else
 * that in the file syncguard/url in $XDG_CONFIG_HOME (or ~/.config), else that in
 * /etc/syncguard/url, else "sqlite:" and the user's file (syncguard/locks.db in $XDG_STATE_HOME or
 * ~/.local/state; for root /var/lib/syncguard/locks.db). Reads files as syncguard_url_from_file
 * does, but a pipe only if SYNCGUARD_URL names it; does not use the network.
 * InvalidArgument if SYNCGUARD_URL is empty, a file exists but cannot be read or contains no URL,
 * the URL does not fit into buffer, or no folder can be found. In a setuid program the environment
 * is ignored. Thread-safe.
 */
SYNCGUARD_API SYNCGUARD_MUST_CHECK syncguard_status syncguard_default_url(char *buffer, size_t size,
                                                                          syncguard_error *err);

/*
 * Reads a URL from a file, so that a password need not be an argument or a variable: the first line
 * that is neither blank nor a comment (its first character is #), without blanks around it. The
 * file is a regular file or a pipe; a pipe may take call->timeout_ms to deliver the line (0 or no
 * call: 30 s).
 * OK; ABSENT if there is no such file; InvalidArgument if it cannot be read or contains no URL, or
 * if the URL does not fit into buffer; NetworkTimeout; Aborted.
 */
SYNCGUARD_API SYNCGUARD_MUST_CHECK syncguard_status syncguard_url_from_file(
    const char *path, const syncguard_call *call, char *buffer, size_t size, syncguard_error *err);

#ifdef __cplusplus
}
#endif

#endif
