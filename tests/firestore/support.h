/* What the tests against the fake server share: one server and one error per program. */
#ifndef SUPPORT_H
#define SUPPORT_H

#include "fake_server.h"

extern fake_server server;
extern syncguard_error err;

/* Fixtures of cmocka: of a group, and before each test. */
int start_server(void **state);
int stop_server(void **state);
int reset_server(void **state);

/* Number of calls since the last call of this function. */
size_t calls_since(void);
/* Whether there is a document of this name, without its prefix. */
bool stored(const char *name);
/* From now on, the times in the answers of the server are ahead by this much. */
void server_is_ahead_by(int ms);

/* What the doctor reported: the worst severity, and a line for each finding. */
typedef struct findings {
    syncguard_severity worst;
    char text[2048];
} findings;
void findings_note(void *context, const syncguard_finding *finding);

#endif
