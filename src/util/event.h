/*
 * A flag that poll(2) can see: an eventfd on Linux, a pipe elsewhere. Both
 * descriptors are non-blocking and closed on exec.
 */
#ifndef SG_UTIL_EVENT_H
#define SG_UTIL_EVENT_H

#include <stdbool.h>

/* fds[0] is the one to poll and read. False if no event can be created: errno is set and fds are
 * -1. */
bool sg_event_open(int fds[2]);
/* pid: the process that opened it. Another process, a forked child, only forgets the descriptors
 * and leaves them open: eventfds cannot be distinguished, and the numbers may by now refer to files
 * of the application. */
void sg_event_close(int fds[2], int pid);
/* Makes fds[0] readable. Async-signal-safe, keeps errno. */
void sg_event_set(const int fds[2]);
/* Makes fds[0] unreadable again. */
void sg_event_reset(const int fds[2]);

#endif
