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

size_t cli_character(const unsigned char *text)
{
    unsigned char low = 0x80, high = 0xBF;
    size_t length = 0;
    if (text[0] < 0x80)
        return 1;
    if (text[0] >= 0xC2 && text[0] <= 0xDF)
        length = 2;
    else if (text[0] >= 0xE0 && text[0] <= 0xEF)
        length = 3;
    else if (text[0] >= 0xF0 && text[0] <= 0xF4)
        length = 4;
    if (text[0] == 0xE0)
        low = 0xA0; /* overlong */
    else if (text[0] == 0xED)
        high = 0x9F; /* surrogates */
    else if (text[0] == 0xF0)
        low = 0x90;
    else if (text[0] == 0xF4)
        high = 0x8F;
    for (size_t i = 1; i < length; i++) {
        if (text[i] < low || text[i] > high)
            return 0;
        low = 0x80;
        high = 0xBF;
    }
    return length;
}

uint32_t cli_code_point(const unsigned char *text, size_t length)
{
    static const unsigned char masks[] = {0, 0x7F, 0x1F, 0x0F, 0x07};
    uint32_t point = text[0] & masks[length];
    for (size_t i = 1; i < length; i++)
        point = point << 6 | (text[i] & 0x3F);
    return point;
}

/* Controls (Cc), separators of lines (Zl, Zp) and format characters (Cf): they turn the direction
 * of text, hide in it or end a line. Those in scripts that show them as signs are left out. */
bool cli_steers(uint32_t point)
{
    static const struct {
        uint32_t first, last;
    } ranges[] = {
        {0x0000, 0x001F},   {0x007F, 0x009F}, {0x00AD, 0x00AD},   {0x061C, 0x061C},
        {0x180E, 0x180E},   {0x200B, 0x200F}, {0x2028, 0x202E},   {0x2060, 0x206F},
        {0xFEFF, 0xFEFF},   {0xFFF9, 0xFFFB}, {0x1BCA0, 0x1BCA3}, {0x1D173, 0x1D17A},
        {0xE0000, 0xE0FFF},
    };
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++) {
        if (point >= ranges[i].first && point <= ranges[i].last)
            return true;
    }
    return false;
}

static size_t put_escaped(char *out, const unsigned char *at, size_t length)
{
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < length; i++) {
        *out++ = '\\';
        *out++ = 'x';
        *out++ = digits[at[i] >> 4];
        *out++ = digits[at[i] & 15];
    }
    return 4 * length;
}

static void escape(const char *text, bool backslashes, char *out, size_t size)
{
    const unsigned char *at = (const unsigned char *)text;
    size_t used = 0;
    while (*at != '\0') {
        size_t length = cli_character(at), made = 0;
        char piece[4 * 4];
        if (length == 0 || cli_steers(cli_code_point(at, length))) {
            length = length == 0 ? 1 : length;
            made = put_escaped(piece, at, length);
        } else if (*at == '\\' && backslashes) {
            piece[made++] = '\\';
            piece[made++] = '\\';
        } else {
            memcpy(piece, at, length);
            made = length;
        }
        if (used + made >= size)
            break;
        memcpy(out + used, piece, made);
        used += made;
        at += length;
    }
    if (size > 0)
        out[used] = '\0';
}

/*
 * Keys and labels come from whoever wrote to the store: a terminal must not be
 * steered by them, and a line must stay a line.
 */
void cli_plain(const char *text, char *out, size_t size)
{
    escape(text, true, out, size);
}

void cli_harmless(const char *text, char *out, size_t size)
{
    escape(text, false, out, size);
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
