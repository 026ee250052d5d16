/*
 * A writer for flat JSON objects, one per line. Text is escaped as RFC 8259 asks;
 * bytes that are no UTF-8 (a label that another program stored) become U+FFFD, so
 * that the output always parses.
 */
#include <inttypes.h>

#include "cli.h"

/* Length of the well-formed UTF-8 sequence at text (NUL-terminated), 0 if there is none. */
static size_t sequence(const unsigned char *text)
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

static void quoted(FILE *out, const char *value)
{
    const unsigned char *at = (const unsigned char *)value;
    putc('"', out);
    while (*at != '\0') {
        size_t length = sequence(at);
        if (length == 0) {
            fputs("\\ufffd", out);
            at++;
        } else if (*at == '"' || *at == '\\') {
            putc('\\', out);
            putc(*at++, out);
        } else if (*at < 0x20 || *at == 0x7F) {
            fprintf(out, "\\u%04x", *at++);
        } else {
            fwrite(at, 1, length, out);
            at += length;
        }
    }
    putc('"', out);
}

static void member(cli_json *json, const char *name)
{
    if (!json->first)
        putc(',', json->out);
    json->first = false;
    quoted(json->out, name);
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
    member(json, name);
    quoted(json->out, value);
}

void cli_json_int(cli_json *json, const char *name, int64_t value)
{
    member(json, name);
    fprintf(json->out, "%" PRId64, value);
}

void cli_json_bool(cli_json *json, const char *name, bool value)
{
    member(json, name);
    fputs(value ? "true" : "false", json->out);
}

void cli_json_end(cli_json *json)
{
    fputs("}\n", json->out);
}
