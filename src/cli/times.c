/* Clocks, durations and points in time. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <syncguard.h>

#include "times.h"

int64_t cli_now_ms(void)
{
    struct timespec now = {0, 0};
#ifdef CLOCK_BOOTTIME
    clock_gettime(CLOCK_BOOTTIME, &now);
#else
    clock_gettime(CLOCK_MONOTONIC, &now);
#endif
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

int64_t cli_wall_ms(void)
{
    struct timespec now = {0, 0};
    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

static int64_t duration_unit_ms(const char *unit)
{
    if (*unit == '\0' || strcmp(unit, "s") == 0)
        return 1000;
    if (strcmp(unit, "ms") == 0)
        return 1;
    if (strcmp(unit, "m") == 0)
        return INT64_C(60) * 1000;
    if (strcmp(unit, "h") == 0)
        return INT64_C(3600) * 1000;
    if (strcmp(unit, "d") == 0)
        return INT64_C(24) * 3600 * 1000;
    return 0;
}

bool cli_parse_duration(const char *text, int64_t *ms)
{
    int64_t whole = 0;
    bool digits = false;
    for (; *text >= '0' && *text <= '9'; text++, digits = true) {
        if (whole > SYNCGUARD_MAX_TIME_MS / 10)
            return false;
        whole = whole * 10 + (*text - '0');
    }
    int64_t part = 0;
    int64_t scale = 1;
    if (digits && *text == '.') {
        digits = false;
        for (text++; *text >= '0' && *text <= '9'; text++, digits = true) {
            if (scale < 1000000) { /* further digits are less than a millisecond of any unit */
                part = part * 10 + (*text - '0');
                scale *= 10;
            }
        }
    }
    int64_t unit = duration_unit_ms(text);
    if (!digits || unit == 0 || whole > (SYNCGUARD_MAX_TIME_MS - unit) / unit)
        return false;
    *ms = whole * unit + part * unit / scale;
    return true;
}

void cli_format_time(int64_t ms, char *out, size_t size)
{
    time_t seconds = (time_t)(ms / 1000);
    struct tm fields;
    if (localtime_r(&seconds, &fields) == NULL ||
        strftime(out, size, "%Y-%m-%d %H:%M:%S %z", &fields) == 0)
        snprintf(out, size, "?");
}

void cli_format_time_utc(int64_t ms, char *out, size_t size)
{
    time_t seconds = (time_t)(ms / 1000);
    struct tm fields;
    if (gmtime_r(&seconds, &fields) == NULL ||
        strftime(out, size, "%Y-%m-%dT%H:%M:%SZ", &fields) == 0)
        snprintf(out, size, "?");
}

void cli_format_duration(int64_t ms, char *out, size_t size)
{
    long long s = (long long)(ms / 1000);
    long long tenths = (long long)((ms + 99) / 100);
    if (ms <= 0)
        snprintf(out, size, "0s");
    else if (ms < 1000)
        snprintf(out, size, "%lldms", (long long)ms);
    else if (ms < 10000 && tenths % 10 != 0)
        snprintf(out, size, "%lld.%llds", tenths / 10, tenths % 10);
    else if (ms < 10000)
        snprintf(out, size, "%llds", tenths / 10);
    else if (s < 60)
        snprintf(out, size, "%llds", s);
    else if (s < 3600)
        snprintf(out, size, "%lldm%02llds", s / 60, s % 60);
    else if (s < 86400)
        snprintf(out, size, "%lldh%02lldm", s / 3600, s % 3600 / 60);
    else
        snprintf(out, size, "%lldd%02lldh", s / 86400, s % 86400 / 3600);
}
