/*
 * Environment variables. A program that runs with more rights than whoever started it (setuid,
 * setgid, file capabilities: AT_SECURE) does not let its environment choose servers, credentials
 * or files; every variable of ours is read through here.
 */
#ifndef SYNCGUARD_SYS_ENVIRONMENT_H
#define SYNCGUARD_SYS_ENVIRONMENT_H

#include "../error.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Whether the kernel started this program with more rights than its caller has. */
SYNCGUARD_API bool syncguard_privileged(void);

/* The variable's value; NULL if it is not set, empty, or the program is privileged. */
SYNCGUARD_API const char *syncguard_environment(const char *name);

/*
 * For variables that a client library reads by itself: InvalidArgument in a privileged program if
 * one is set whose name begins with prefix. OK otherwise.
 */
SYNCGUARD_API syncguard_status syncguard_environment_refuse(const char *prefix,
                                                            syncguard_error *err);

#ifdef __cplusplus
}
#endif

#endif
