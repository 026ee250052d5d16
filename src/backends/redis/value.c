/*
 * The stored lock: a JSON object. Ours has a fixed layout; that of other writers
 * may have any order, spacing, number format and further fields.
 *
 * The text must be JSON, and the expiry must be readable, else nothing is known
 * of the lock. A field that cannot be read leaves its place in the record empty.
 * The reader never reads past the end, recurses to a fixed depth and writes only
 * into the record.
 */
#include <string.h>

#include "internal.h"

#define MAX_DEPTH 32

typedef struct cursor {
    const char *at;
    const char *end;
} cursor;

static void skip_space(cursor *c)
{
    while (c->at < c->end && (*c->at == ' ' || *c->at == '\t' || *c->at == '\n' || *c->at == '\r'))
        c->at++;
}

static bool take(cursor *c, char wanted)
{
    skip_space(c);
    if (c->at >= c->end || *c->at != wanted)
        return false;
    c->at++;
    return true;
}

static int hex4(cursor *c)
{
    if (c->end - c->at < 4)
        return -1;
    int value = 0;
    for (int i = 0; i < 4; i++) {
        char ch = *c->at++;
        int digit;
        if (ch >= '0' && ch <= '9')
            digit = ch - '0';
        else if (ch >= 'a' && ch <= 'f')
            digit = ch - 'a' + 10;
        else if (ch >= 'A' && ch <= 'F')
            digit = ch - 'A' + 10;
        else
            return -1;
        value = value * 16 + digit;
    }
    return value;
}

static size_t put_utf8(uint32_t code, char out[4])
{
    if (code < 0x80) {
        out[0] = (char)code;
        return 1;
    }
    if (code < 0x800) {
        out[0] = (char)(0xC0 | (code >> 6));
        out[1] = (char)(0x80 | (code & 0x3F));
        return 2;
    }
    if (code < 0x10000) {
        out[0] = (char)(0xE0 | (code >> 12));
        out[1] = (char)(0x80 | ((code >> 6) & 0x3F));
        out[2] = (char)(0x80 | (code & 0x3F));
        return 3;
    }
    out[0] = (char)(0xF0 | (code >> 18));
    out[1] = (char)(0x80 | ((code >> 12) & 0x3F));
    out[2] = (char)(0x80 | ((code >> 6) & 0x3F));
    out[3] = (char)(0x80 | (code & 0x3F));
    return 4;
}

/* After the backslash: the bytes it stands for, or 0. */
static size_t read_escape(cursor *c, char out[4])
{
    static const char from[] = "\"\\/bfnrt";
    static const char to[] = "\"\\/\b\f\n\r\t";
    if (c->at >= c->end)
        return 0;
    char ch = *c->at++;
    if (ch != 'u') {
        const char *found = ch == '\0' ? NULL : strchr(from, ch);
        if (found == NULL)
            return 0;
        out[0] = to[found - from];
        return 1;
    }
    int unit = hex4(c);
    if (unit <= 0) /* a NUL has no place in a C string */
        return 0;
    uint32_t code = (uint32_t)unit;
    if (code >= 0xD800 && code <= 0xDBFF) {
        if (c->end - c->at < 6 || c->at[0] != '\\' || c->at[1] != 'u')
            return 0;
        c->at += 2;
        int low = hex4(c);
        if (low < 0xDC00 || low > 0xDFFF)
            return 0;
        code = 0x10000 + ((code - 0xD800) << 10) + ((uint32_t)low - 0xDC00);
    } else if (code >= 0xDC00 && code <= 0xDFFF) {
        return 0;
    }
    return put_utf8(code, out);
}

/* A string into out (size with NUL); false if malformed or too long. out may be NULL: skip. */
static bool read_string(cursor *c, char *out, size_t size)
{
    size_t length = 0;
    if (!take(c, '"'))
        return false;
    while (c->at < c->end && *c->at != '"') {
        char bytes[4] = {*c->at, 0, 0, 0};
        size_t n = 1;
        if (*c->at == '\\') {
            c->at++;
            n = read_escape(c, bytes);
            if (n == 0)
                return false;
        } else if ((unsigned char)*c->at < 0x20) {
            return false;
        } else {
            c->at++;
        }
        if (out == NULL)
            continue;
        if (length + n >= size)
            return false;
        memcpy(out + length, bytes, n);
        length += n;
    }
    if (out != NULL)
        out[length] = '\0';
    return take(c, '"');
}

/* Up to 15 digits and nothing else: what we write. */
static bool read_digits(cursor *c, int64_t *out)
{
    const char *at = c->at;
    int64_t value = 0;
    while (at < c->end && *at >= '0' && *at <= '9' && at - c->at < 15)
        value = value * 10 + (*at++ - '0');
    if (at == c->at || at == c->end || (*at != ',' && *at != '}'))
        return false;
    c->at = at;
    *out = value;
    return true;
}

/* The digits of a number without sign, and where its decimal point belongs. */
typedef struct decimal {
    char digits[40]; /* without leading zeros */
    int count;
    int point; /* so many of them, or of the zeros behind them, stand before it */
} decimal;

static bool is_digit(const cursor *c)
{
    return c->at < c->end && *c->at >= '0' && *c->at <= '9';
}

static bool add_digits(cursor *c, decimal *number, int step)
{
    for (; is_digit(c); c->at++) {
        if (*c->at != '0' || number->count > 0) {
            if (number->count == (int)sizeof number->digits)
                return false;
            number->digits[number->count++] = *c->at;
            number->point += step;
        } else if (step == 0) {
            number->point--;
        }
    }
    return true;
}

static bool read_exponent(cursor *c, decimal *number)
{
    if (c->at >= c->end || (*c->at != 'e' && *c->at != 'E'))
        return true;
    c->at++;
    bool negative = c->at < c->end && *c->at == '-';
    if (c->at < c->end && (*c->at == '-' || *c->at == '+'))
        c->at++;
    if (!is_digit(c))
        return false;
    int value = 0;
    for (; is_digit(c); c->at++)
        value = value < 10000 ? value * 10 + (*c->at - '0') : value;
    number->point += negative ? -value : value;
    return true;
}

/* A JSON number that is whole, and at most 2^53 - 1 on either side of 0. By hand, because strtod
 * follows the locale. */
static bool read_number(cursor *c, int64_t *out)
{
    if (read_digits(c, out))
        return true;
    decimal number = {{0}, 0, 0};
    skip_space(c);
    bool negative = c->at < c->end && *c->at == '-';
    if (negative)
        c->at++;
    if (!is_digit(c) || !add_digits(c, &number, 1))
        return false;
    if (c->at < c->end && *c->at == '.') {
        c->at++;
        if (!is_digit(c) || !add_digits(c, &number, 0))
            return false;
    }
    if (!read_exponent(c, &number))
        return false;
    int64_t value = 0;
    for (int i = 0; i < number.point && number.count > 0; i++) {
        value = value * 10 + (i < number.count ? number.digits[i] - '0' : 0);
        if (value > SYNCGUARD_MAX_TIME_MS)
            return false;
    }
    for (int i = number.point > 0 ? number.point : 0; i < number.count; i++) {
        if (number.digits[i] != '0') /* behind the point */
            return false;
    }
    *out = negative ? -value : value;
    return true;
}

static bool skip_value(cursor *c, int depth);

static bool skip_members(cursor *c, char close, bool named, int depth)
{
    c->at++;
    if (take(c, close))
        return true;
    do {
        if (named && (!read_string(c, NULL, 0) || !take(c, ':')))
            return false;
        if (!skip_value(c, depth))
            return false;
    } while (take(c, ','));
    return take(c, close);
}

static bool skip_value(cursor *c, int depth)
{
    skip_space(c);
    if (c->at >= c->end || depth > MAX_DEPTH)
        return false;
    if (*c->at == '"')
        return read_string(c, NULL, 0);
    if (*c->at == '{')
        return skip_members(c, '}', true, depth + 1);
    if (*c->at == '[')
        return skip_members(c, ']', false, depth + 1);
    const char *start = c->at; /* number, true, false, null */
    while (c->at < c->end && strchr("+-.0123456789eEtrufalsn", *c->at) != NULL && *c->at != '\0')
        c->at++;
    return c->at > start;
}

/* Reads the key in whatever form it was written, and gives its NFC. */
static bool read_key(cursor *c, char out[SYNCGUARD_KEY_SIZE])
{
    char raw[SYNCGUARD_MAX_RAW_KEY_BYTES + 1];
    size_t length = 0;
    return read_string(c, raw, sizeof raw) &&
           syncguard_key_normalise(raw, out, &length, NULL) == SYNCGUARD_OK;
}

static bool read_field(cursor *c, const char *name, syncguard_record *record, bool *timed)
{
    if (strcmp(name, "lockId") == 0)
        return read_string(c, record->lock_id, sizeof record->lock_id) &&
               syncguard_lock_id_valid(record->lock_id);
    if (strcmp(name, "expiresAtMs") == 0)
        return *timed = read_number(c, &record->expires_at_ms);
    if (strcmp(name, "acquiredAtMs") == 0)
        return read_number(c, &record->acquired_at_ms);
    if (strcmp(name, "key") == 0)
        return read_key(c, record->key);
    if (strcmp(name, "fence") == 0)
        return read_string(c, record->fence, sizeof record->fence) &&
               syncguard_fence_valid(record->fence);
    if (strcmp(name, "owner") == 0)
        return read_string(c, record->owner, sizeof record->owner);
    return false;
}

/* Of a name that occurs twice the last counts, as for the scripts' decoder. */
static void clear_field(const char *name, syncguard_record *record)
{
    if (strcmp(name, "lockId") == 0)
        record->lock_id[0] = '\0';
    else if (strcmp(name, "acquiredAtMs") == 0)
        record->acquired_at_ms = 0;
    else if (strcmp(name, "key") == 0)
        record->key[0] = '\0';
    else if (strcmp(name, "fence") == 0)
        record->fence[0] = '\0';
    else if (strcmp(name, "owner") == 0)
        record->owner[0] = '\0';
}

/* What follows a name. False: no JSON. */
static bool read_member(cursor *c, const char *name, syncguard_record *record, bool *timed)
{
    cursor mark = *c;
    if (read_field(c, name, record, timed))
        return true;
    clear_field(name, record);
    *c = mark;
    return skip_value(c, 1);
}

sg_value sg_redis_value_read(const char *text, size_t length, syncguard_record *record)
{
    cursor c = {text, text + length};
    bool timed = false;
    record->owner[0] = record->key[0] = record->lock_id[0] = record->fence[0] = '\0';
    record->expires_at_ms = record->acquired_at_ms = 0;
    if (!take(&c, '{'))
        return SG_VALUE_UNREADABLE;
    do {
        char name[16];
        cursor mark = c;
        bool known = read_string(&c, name, sizeof name);
        if (!known) {
            c = mark; /* longer than any name of ours */
            if (!read_string(&c, NULL, 0))
                return SG_VALUE_UNREADABLE;
        }
        if (!take(&c, ':'))
            return SG_VALUE_UNREADABLE;
        if (known ? !read_member(&c, name, record, &timed) : !skip_value(&c, 1))
            return SG_VALUE_UNREADABLE;
    } while (take(&c, ','));
    if (!take(&c, '}'))
        return SG_VALUE_UNREADABLE;
    skip_space(&c);
    if (c.at != c.end || !timed)
        return SG_VALUE_UNREADABLE;
    return record->key[0] != '\0' && record->lock_id[0] != '\0' && record->fence[0] != '\0'
               ? SG_VALUE_WHOLE
               : SG_VALUE_DAMAGED;
}

void sg_redis_value_quote(sg_text *out, const char *text, size_t length)
{
    static const char hex[] = "0123456789abcdef";
    size_t clean = 0; /* start of what needs no escape */
    sg_redis_text_add(out, "\"", 1);
    for (size_t i = 0; i < length; i++) {
        unsigned char ch = (unsigned char)text[i];
        if (ch >= 0x20 && ch != '"' && ch != '\\')
            continue;
        sg_redis_text_add(out, text + clean, i - clean);
        clean = i + 1;
        if (ch >= 0x20) {
            char pair[2] = {'\\', (char)ch};
            sg_redis_text_add(out, pair, 2);
        } else {
            char code[6] = {'\\', 'u', '0', '0', hex[ch >> 4], hex[ch & 15]};
            sg_redis_text_add(out, code, 6);
        }
    }
    sg_redis_text_add(out, text + clean, length - clean);
    sg_redis_text_add(out, "\"", 1);
}
