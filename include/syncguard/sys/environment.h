/*
 * Environment variables. In a program that runs with more privileges than the user who started it
 * (setuid, setgid, file capabilities: AT_SECURE), the environment must not select servers,
 * credentials or files. The library reads all of its variables through these functions.
 */
#ifndef SYNCGUARD_SYS_ENVIRONMENT_H
#define SYNCGUARD_SYS_ENVIRONMENT_H

#include "../error.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Whether the kernel started this program with more privileges than its caller has. */
SYNCGUARD_API bool syncguard_privileged(void);

/* The variable's value; NULL if it is not set, empty, or the program is privileged. */
SYNCGUARD_API const char *syncguard_environment(const char *name);

/*
 * For variables that a client library reads itself. InvalidArgument if the program is privileged
 * and a variable is set whose name begins with prefix, else OK.
 */
SYNCGUARD_API syncguard_status syncguard_environment_refuse(const char *prefix,
                                                            syncguard_error *err);

#ifdef __cplusplus
}
#endif

#endif
