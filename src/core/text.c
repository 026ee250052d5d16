/* See text.h. */
#include "core/text.h"

#include <stddef.h>

int sg_ascii_lower(int c)
{
    return c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c;
}

bool sg_read_int64(const char *text, int64_t *value)
{
    bool negative = *text == '-';
    int64_t sum = 0;

    if (negative)
        text++;
    if (!*text)
        return false;
    /* Summed below zero, where there is room for one more. */
    for (; *text; text++) {
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

static bool is_letter(char c)
{
    c = (char)sg_ascii_lower(c);
    return c >= 'a' && c <= 'z';
}

const char *sg_scheme_end(const char *url)
{
    const char *c = url;

    if (!is_letter(*c))
        return NULL;
    while (is_letter(*c) || (*c >= '0' && *c <= '9') || *c == '+' || *c == '-' || *c == '.')
        c++;
    return *c == ':' ? c : NULL;
}
