/*
 * The stored lock: a JSON object. Ours has a fixed layout; that of other writers may have any
 * order, spacing, number format and further fields.
 *
 * The text must be JSON, and the expiry must be readable, else nothing is known of the lock. Any
 * other field that cannot be read is left empty in the record. The reader never reads past the end,
 * recurses to a fixed depth and writes only into the record.
 */
#include "record.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_DEPTH 32

typedef struct cursor {
    const char *at;
    const char *end;
} cursor;

static void redis_json_skip_space(cursor *c)
{
    while (c->at < c->end && (*c->at == ' ' || *c->at == '\t' || *c->at == '\n' || *c->at == '\r'))
        c->at++;
}

static bool redis_json_take(cursor *c, char wanted)
{
    redis_json_skip_space(c);
    if (c->at >= c->end || *c->at != wanted)
        return false;
    c->at++;
    return true;
}

static int redis_json_read_hex4(cursor *c)
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

static size_t redis_json_put_utf8(uint32_t code, char out[4])
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
static size_t redis_json_read_escape(cursor *c, char out[4])
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
    int unit = redis_json_read_hex4(c);
    if (unit <= 0) /* a NUL has no place in a C string */
        return 0;
    uint32_t code = (uint32_t)unit;
    if (code >= 0xD800 && code <= 0xDBFF) {
        if (c->end - c->at < 6 || c->at[0] != '\\' || c->at[1] != 'u')
            return 0;
        c->at += 2;
        int low = redis_json_read_hex4(c);
        if (low < 0xDC00 || low > 0xDFFF)
            return 0;
        code = 0x10000 + ((code - 0xD800) << 10) + ((uint32_t)low - 0xDC00);
    } else if (code >= 0xDC00 && code <= 0xDFFF) {
        return 0;
    }
    return redis_json_put_utf8(code, out);
}

/* Reads a string into out (size with NUL); false if malformed or too long. out may be NULL:
 * skip. */
static bool redis_json_read_string(cursor *c, char *out, size_t size)
{
    size_t length = 0;
    if (!redis_json_take(c, '"'))
        return false;
    while (c->at < c->end && *c->at != '"') {
        char bytes[4] = {*c->at, 0, 0, 0};
        size_t n = 1;
        if (*c->at == '\\') {
            c->at++;
            n = redis_json_read_escape(c, bytes);
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
    return redis_json_take(c, '"');
}

static bool redis_json_is_digit(const cursor *c)
{
    return c->at < c->end && *c->at >= '0' && *c->at <= '9';
}

/* The exponent of a number, 0 without one. */
static bool redis_json_read_exponent(cursor *c, int *out)
{
    *out = 0;
    if (c->at >= c->end || (*c->at != 'e' && *c->at != 'E'))
        return true;
    c->at++;
    bool negative = c->at < c->end && *c->at == '-';
    if (c->at < c->end && (*c->at == '-' || *c->at == '+'))
        c->at++;
    if (!redis_json_is_digit(c))
        return false;
    int value = 0;
    for (; redis_json_is_digit(c); c->at++)
        value = value < 1000000 ? value * 10 + (*c->at - '0') : value;
    *out = negative ? -value : value;
    return true;
}

/* No double, and no midpoint between two of them, has more significant digits than this. */
#define MAX_DIGITS 780

typedef struct decimal {
    char text[MAX_DIGITS + 16]; /* significant digits, then room for an exponent */
    size_t length;
    int exponent;
} decimal;

/* Reads the digits before or after the point. Digits that no longer fit still count for the
 * rounding. */
static bool redis_json_add_digits(cursor *c, decimal *d, bool behind_point)
{
    if (!redis_json_is_digit(c))
        return false;
    for (; redis_json_is_digit(c); c->at++) {
        if (behind_point)
            d->exponent--;
        if (d->length == 0 && *c->at == '0')
            continue;
        if (d->length < MAX_DIGITS) {
            d->text[d->length++] = *c->at;
            continue;
        }
        d->exponent++;
        if (*c->at != '0' && d->text[MAX_DIGITS - 1] == '0')
            d->text[MAX_DIGITS - 1] = '1';
    }
    return true;
}

/*
 * Reads a JSON number of at most 2^53 - 1 on either side of 0, with a fraction rounded up, which
 * changes no comparison with a whole number of milliseconds. Rounded to a double first, because the
 * scripts do so and must come to the same number. strtod gets no decimal point, because that
 * depends on the locale.
 */
static bool redis_json_read_number(cursor *c, int64_t *out)
{
    decimal d;
    d.length = 0;
    d.exponent = 0;
    redis_json_skip_space(c);
    bool negative = c->at < c->end && *c->at == '-';
    if (negative)
        c->at++;
    if (!redis_json_add_digits(c, &d, false))
        return false;
    if (c->at < c->end && *c->at == '.') {
        c->at++;
        if (!redis_json_add_digits(c, &d, true))
            return false;
    }
    int exponent = 0;
    if (!redis_json_read_exponent(c, &exponent))
        return false;
    double value = 0;
    if (d.length > 0) {
        snprintf(d.text + d.length, sizeof d.text - d.length, "e%d", d.exponent + exponent);
        value = strtod(d.text, NULL);
    }
    if (!(value <= (double)SYNCGUARD_MAX_TIME_MS))
        return false;
    if (negative)
        value = -value;
    *out = (int64_t)value;
    if ((double)*out < value)
        ++*out;
    return true;
}

static bool redis_json_skip_value(cursor *c, int depth);

static bool redis_json_skip_members(cursor *c, char close, bool named, int depth)
{
    c->at++;
    if (redis_json_take(c, close))
        return true;
    do {
        if (named && (!redis_json_read_string(c, NULL, 0) || !redis_json_take(c, ':')))
            return false;
        if (!redis_json_skip_value(c, depth))
            return false;
    } while (redis_json_take(c, ','));
    return redis_json_take(c, close);
}

static bool redis_json_skip_value(cursor *c, int depth)
{
    redis_json_skip_space(c);
    if (c->at >= c->end || depth > MAX_DEPTH)
        return false;
    if (*c->at == '"')
        return redis_json_read_string(c, NULL, 0);
    if (*c->at == '{')
        return redis_json_skip_members(c, '}', true, depth + 1);
    if (*c->at == '[')
        return redis_json_skip_members(c, ']', false, depth + 1);
    const char *start = c->at; /* number, true, false, null */
    while (c->at < c->end && strchr("+-.0123456789eEtrufalsn", *c->at) != NULL && *c->at != '\0')
        c->at++;
    return c->at > start;
}

/* Reads a text into out, which is "" if it cannot be read or is not valid. */
static bool redis_record_read_text(cursor *c, char *out, size_t size,
                                   bool (*is_valid)(const char *))
{
    if (redis_json_read_string(c, out, size) && (is_valid == NULL || is_valid(out)))
        return true;
    out[0] = '\0';
    return false;
}

/* Reads the key in whatever form it was written, and gives its NFC. */
static bool redis_record_read_key(cursor *c, char out[SYNCGUARD_KEY_SIZE])
{
    char raw[SYNCGUARD_MAX_RAW_KEY_BYTES + 1];
    size_t length = 0;
    if (redis_json_read_string(c, raw, sizeof raw) &&
        syncguard_key_normalize(raw, out, &length, NULL) == SYNCGUARD_OK)
        return true;
    out[0] = '\0';
    return false;
}

/* If a name occurs twice, the last one counts, as in the decoder of the scripts. */
static bool redis_record_read_field(cursor *c, const char *name, syncguard_record *record,
                                    bool *timed)
{
    if (strcmp(name, "lockId") == 0)
        return redis_record_read_text(c, record->lock_id, sizeof record->lock_id,
                                      syncguard_lock_id_valid);
    if (strcmp(name, "expiresAtMs") == 0)
        return *timed = redis_json_read_number(c, &record->expires_at_ms);
    if (strcmp(name, "acquiredAtMs") == 0) {
        record->acquired_at_ms = 0;
        return redis_json_read_number(c, &record->acquired_at_ms);
    }
    if (strcmp(name, "key") == 0)
        return redis_record_read_key(c, record->key);
    if (strcmp(name, "fence") == 0)
        return redis_record_read_text(c, record->fence, sizeof record->fence,
                                      syncguard_fence_valid);
    if (strcmp(name, "owner") == 0)
        return redis_record_read_text(c, record->owner, sizeof record->owner, NULL);
    return false;
}

/* Reads the value of a name. False: not JSON. */
static bool redis_record_read_member(cursor *c, const char *name, syncguard_record *record,
                                     bool *timed)
{
    cursor mark = *c;
    if (redis_record_read_field(c, name, record, timed))
        return true;
    *c = mark;
    return redis_json_skip_value(c, 1);
}

sg_redis_legibility sg_redis_record_read(const char *text, size_t length, syncguard_record *record)
{
    cursor c = {text, text + length};
    record->owner[0] = record->key[0] = record->lock_id[0] = record->fence[0] = '\0';
    record->expires_at_ms = record->acquired_at_ms = 0;
    if (!redis_json_take(&c, '{'))
        return SG_REDIS_UNREADABLE;
    bool timed = false;
    do {
        char name[16];
        cursor mark = c;
        bool known = redis_json_read_string(&c, name, sizeof name);
        if (!known) {
            c = mark; /* longer than any name of ours */
            if (!redis_json_read_string(&c, NULL, 0))
                return SG_REDIS_UNREADABLE;
        }
        if (!redis_json_take(&c, ':'))
            return SG_REDIS_UNREADABLE;
        if (!(known ? redis_record_read_member(&c, name, record, &timed)
                    : redis_json_skip_value(&c, 1)))
            return SG_REDIS_UNREADABLE;
    } while (redis_json_take(&c, ','));
    if (!redis_json_take(&c, '}'))
        return SG_REDIS_UNREADABLE;
    redis_json_skip_space(&c);
    if (c.at != c.end || !timed)
        return SG_REDIS_UNREADABLE;
    return record->key[0] != '\0' && record->lock_id[0] != '\0' && record->fence[0] != '\0'
               ? SG_REDIS_WHOLE
               : SG_REDIS_DAMAGED;
}

void sg_redis_record_quote(sg_redis_text *out, const char *text, size_t length)
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

void sg_redis_record_add_rest(sg_redis_text *args, const syncguard_acquire_op *op)
{
    sg_redis_text rest;
    sg_redis_text_init(&rest);
    sg_redis_text_add(&rest, "\"key\":", 6);
    sg_redis_record_quote(&rest, op->key, op->key_length);
    if (op->owner[0] != '\0') {
        sg_redis_text_add(&rest, ",\"owner\":", 9);
        sg_redis_record_quote(&rest, op->owner, strlen(op->owner));
    }
    sg_redis_text_add(&rest, "}", 1);
    sg_redis_text_arg(args, rest.data, rest.length);
    if (rest.failed)
        args->failed = true;
    sg_redis_text_free(&rest);
}
