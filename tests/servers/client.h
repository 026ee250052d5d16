/*
 * Servers that a C program starts, kills and starts again. tests/servers starts them in a process
 * of its own, which ends with all its servers when this program ends, no matter how.
 */
#ifndef TESTS_SERVERS_CLIENT_H
#define TESTS_SERVERS_CLIENT_H

#include <sys/types.h>

typedef struct test_server {
    int number;
    int port;
    pid_t pid; /* for signals; not our child */
    char folder[64];
} test_server;

/* Sends a request to serve.py: a verb, and words up to NULL, without tabs and newlines. The reply
 * is stored in *server. An error ends the program: without a server nothing can be tested. */
void servers_ask(test_server *server, const char *verb, const char *const *words);
/* Sends a request about *server: its number, then the words. */
void servers_change(test_server *server, const char *verb, const char *const *words);

#endif
