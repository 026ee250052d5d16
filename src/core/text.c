/* See text.h. */
#include "core/text.h"

#include <stddef.h>
#include <stdio.h>

int sg_ascii_lower(int c)
{
    return c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c;
}

bool sg_read_int64(const char *text, int64_t *value)
{
    bool negative = *text == '-';
    if (negative)
        text++;
    if (*text == 0)
        return false;
    int64_t sum = 0;
    /* The sum is negative, because INT64_MIN has no positive counterpart. */
    for (; *text != 0; text++) {
        int digit = *text - '0';
        if (digit < 0 || digit > 9 || sum < (INT64_MIN + digit) / 10)
            return false;
        sum = sum * 10 - digit;
    }
    if (!negative && sum == INT64_MIN)
        return false;
    *value = negative ? sum : -sum;
    return true;
}

static bool ascii_is_letter(char c)
{
    c = (char)sg_ascii_lower(c);
    return c >= 'a' && c <= 'z';
}

const char *sg_scheme_end(const char *url)
{
    const char *c = url;
    if (!ascii_is_letter(*c))
        return NULL;
    while (ascii_is_letter(*c) || (*c >= '0' && *c <= '9') || *c == '+' || *c == '-' || *c == '.')
        c++;
    return *c == ':' ? c : NULL;
}

void sg_format_duration(int64_t ms, char *out, size_t size)
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

void sg_base64url_16(const unsigned char bytes[SG_ID_BYTES], char out[SYNCGUARD_LOCK_ID_SIZE])
{
    static const char alphabet[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    for (int i = 0; i < 5; i++) {
        uint32_t group =
            (uint32_t)bytes[3 * i] << 16 | (uint32_t)bytes[3 * i + 1] << 8 | bytes[3 * i + 2];
        *out++ = alphabet[group >> 18];
        *out++ = alphabet[group >> 12 & 63];
        *out++ = alphabet[group >> 6 & 63];
        *out++ = alphabet[group & 63];
    }
    *out++ = alphabet[bytes[15] >> 2];
    *out++ = alphabet[(bytes[15] & 3) << 4];
    *out = '\0';
}
