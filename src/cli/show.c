/* Locks, texts and times for people. */
#include <string.h>
#include <time.h>

#include "cli.h"

int64_t cli_wall_ms(void)
{
    struct timespec now = {0, 0};
    clock_gettime(CLOCK_REALTIME, &now);
    return (int64_t)now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

/* How much of a text that is cut before the byte next ends with a whole UTF-8 character. */
static size_t whole_characters(const char *text, size_t used, unsigned char next)
{
    if ((next & 0xC0) != 0x80)
        return used;
    while (used > 0 && ((unsigned char)text[used - 1] & 0xC0) == 0x80)
        used--;
    return used > 0 ? used - 1 : 0;
}

/*
 * Keys and labels come from whoever wrote to the store: a terminal must not be
 * steered by them, and a line must stay a line. C1 controls are two bytes.
 */
void cli_plain(const char *text, char *out, size_t size)
{
    size_t used = 0;
    for (const unsigned char *at = (const unsigned char *)text; *at != '\0'; at++) {
        bool c1 = at[0] == 0xC2 && at[1] >= 0x80 && at[1] <= 0x9F;
        char piece[8];
        int length = 1;
        if (*at == '\\')
            length = snprintf(piece, sizeof piece, "\\\\");
        else if (*at < 0x20 || *at == 0x7F || c1)
            length = snprintf(piece, sizeof piece, "\\x%02x", c1 ? *++at : *at);
        else
            piece[0] = (char)*at;
        if (used + (size_t)length >= size) {
            used = whole_characters(out, used, *at);
            break;
        }
        memcpy(out + used, piece, (size_t)length);
        used += (size_t)length;
    }
    if (size > 0)
        out[used] = '\0';
}

void cli_time(int64_t ms, char *out, size_t size)
{
    time_t seconds = (time_t)(ms / 1000);
    struct tm fields;
    if (localtime_r(&seconds, &fields) == NULL ||
        strftime(out, size, "%Y-%m-%d %H:%M:%S", &fields) == 0)
        snprintf(out, size, "?");
}

void cli_span(int64_t ms, char *out, size_t size)
{
    long long s = (long long)(ms / 1000);
    if (ms <= 0)
        snprintf(out, size, "0s");
    else if (ms < 1000)
        snprintf(out, size, "%lldms", (long long)ms);
    else if (s < 60)
        snprintf(out, size, "%llds", s);
    else if (s < 3600)
        snprintf(out, size, "%lldm%02llds", s / 60, s % 60);
    else if (s < 86400)
        snprintf(out, size, "%lldh%02lldm", s / 3600, s % 3600 / 60);
    else
        snprintf(out, size, "%lldd%02lldh", s / 86400, s % 86400 / 3600);
}

void cli_json_lock(cli_json *json, const syncguard_lock_info *info,
                   const syncguard_lock_info_raw *raw)
{
    cli_json_text(json, "keyHash", info->key_hash);
    cli_json_text(json, "lockIdHash", info->lock_id_hash);
    cli_json_text(json, "fence", info->fence);
    cli_json_int(json, "acquiredAtMs", info->acquired_at_ms);
    cli_json_int(json, "expiresAtMs", info->expires_at_ms);
    if (raw != NULL) {
        cli_json_text(json, "key", raw->key);
        cli_json_text(json, "lockId", raw->lock_id);
        cli_json_text(json, "owner", raw->owner);
    }
}
