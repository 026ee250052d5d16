/* The audit line: a record, for the operators of the store, of what a user did to the lock of
 * another owner. */
#ifndef SYNCGUARD_CLI_AUDIT_H
#define SYNCGUARD_CLI_AUDIT_H

#include <syncguard.h>

/* Writes time, operator, action, store, key, owner, fence and result to stderr, and to syslog if
 * asked for. The line contains neither the lock id nor credentials of the URL. False if the line
 * could not be written to stderr. */
bool cli_audit(const char *action, const char *url, const syncguard_lock_info_raw *lock,
               const char *result, bool to_syslog);

#endif
