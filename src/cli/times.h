/* Clocks, durations and points in time. */
#ifndef SYNCGUARD_CLI_TIMES_H
#define SYNCGUARD_CLI_TIMES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Milliseconds of a clock that is never set and also counts while the machine is suspended. */
int64_t cli_now_ms(void);
/* Milliseconds since 1970. */
int64_t cli_wall_ms(void);

/* "1.5", "500ms", "30s", "5m", "2h", "1d"; a plain number is seconds. */
bool cli_parse_duration(const char *text, int64_t *ms);
/* "250ms", "1.5s", "12s", "3m05s", "2h03m", "4d02h"; a negative time is "0s". All messages print
 * durations in this form, also those of the library (core/text.h). */
void cli_format_duration(int64_t ms, char *out, size_t size);
/* "2026-01-31 12:00:00 +0100" in local time. */
void cli_format_time(int64_t ms, char *out, size_t size);
/* "2026-01-31T11:00:00Z", for logs that machines of several zones share. */
void cli_format_time_utc(int64_t ms, char *out, size_t size);

#endif
