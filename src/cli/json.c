/*
 * Flat JSON objects, one per line. Text is escaped as RFC 8259 requires, and so are
 * control and format characters, because a terminal may show the output. Bytes that
 * are not UTF-8 (in a label that another program stored) become U+FFFD, so that the
 * output always parses.
 */
#include <inttypes.h>

#include "json.h"
#include "text.h"

/* A code point above U+FFFF becomes a pair of surrogates. */
static void json_put_escape(FILE *out, uint32_t point)
{
    if (point > 0xFFFF)
        fprintf(out, "\\u%04x\\u%04x", (unsigned)(0xD800 + ((point - 0x10000) >> 10)),
                (unsigned)(0xDC00 + ((point - 0x10000) & 0x3FF)));
    else
        fprintf(out, "\\u%04x", (unsigned)point);
}

static void json_put_string(FILE *out, const char *value)
{
    const unsigned char *at = (const unsigned char *)value;
    putc('"', out);
    while (*at != '\0') {
        size_t length = cli_utf8_length(at);
        if (length == 0) {
            fputs("\\ufffd", out);
            at++;
        } else if (*at == '"' || *at == '\\') {
            putc('\\', out);
            putc(*at++, out);
        } else if (cli_is_control(cli_utf8_decode(at, length))) {
            json_put_escape(out, cli_utf8_decode(at, length));
            at += length;
        } else {
            fwrite(at, 1, length, out);
            at += length;
        }
    }
    putc('"', out);
}

static void json_begin_member(cli_json *json, const char *name)
{
    if (!json->first)
        putc(',', json->out);
    json->first = false;
    json_put_string(json->out, name);
    putc(':', json->out);
}

void cli_json_begin(cli_json *json)
{
    json->out = stdout;
    json->first = true;
    putc('{', json->out);
}

void cli_json_text(cli_json *json, const char *name, const char *value)
{
    json_begin_member(json, name);
    json_put_string(json->out, value);
}

void cli_json_int(cli_json *json, const char *name, int64_t value)
{
    json_begin_member(json, name);
    fprintf(json->out, "%" PRId64, value);
}

void cli_json_bool(cli_json *json, const char *name, bool value)
{
    json_begin_member(json, name);
    fputs(value ? "true" : "false", json->out);
}

void cli_json_lock(cli_json *json, const syncguard_lock_info_raw *lock, bool with_id)
{
    cli_json_text(json, "key", lock->key);
    cli_json_text(json, "owner", lock->owner);
    cli_json_text(json, "fence", lock->info.fence);
    cli_json_int(json, "acquiredAtMs", lock->info.acquired_at_ms);
    cli_json_int(json, "expiresAtMs", lock->info.expires_at_ms);
    cli_json_int(json, "nowMs", lock->info.now_ms);
    cli_json_text(json, "keyHash", lock->info.key_hash);
    cli_json_text(json, "lockIdHash", lock->info.lock_id_hash);
    if (with_id)
        cli_json_text(json, "lockId", lock->lock_id);
}

void cli_json_end(cli_json *json)
{
    fputs("}\n", json->out);
}
