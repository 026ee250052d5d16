/*
 * UTF-8, and text made safe for a terminal: any program with access to the store can write keys and
 * labels, which must neither control the terminal nor break a line.
 */
#include <locale.h>
#include <string.h>
#include <wchar.h>

#include "text.h"

size_t cli_utf8_length(const unsigned char *text)
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

uint32_t cli_utf8_decode(const unsigned char *text, size_t length)
{
    static const unsigned char masks[] = {0, 0x7F, 0x1F, 0x0F, 0x07};
    uint32_t point = text[0] & masks[length];
    for (size_t i = 1; i < length; i++)
        point = point << 6 | (text[i] & 0x3F);
    return point;
}

/* Control characters (Cc), line separators (Zl, Zp) and format characters (Cf): they change the
 * direction of text, are invisible or end a line. Format characters that are visible signs of
 * their script are not in the list. */
bool cli_is_control(uint32_t point)
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

/* ---- columns of a terminal ---- */

void cli_use_utf8(void)
{
    /* Not every system has the first locale. */
    static const char *const names[] = {"C.UTF-8", "en_US.UTF-8", ""};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if (setlocale(LC_CTYPE, names[i]) != NULL)
            return;
    }
}

/* Columns of the character at text, `unknown` if the C library does not know it; and its length,
 * at least one byte. */
static int character_columns(const char *text, int unknown, size_t *length)
{
    const unsigned char *at = (const unsigned char *)text;
    *length = cli_utf8_length(at);
    if (*length == 0) {
        *length = 1;
        return 1;
    }
    int columns = wcwidth((wchar_t)cli_utf8_decode(at, *length));
    return columns >= 0 ? columns : unknown;
}

int cli_columns(const char *text)
{
    int columns = 0;
    for (size_t length; *text != '\0'; text += length)
        columns += character_columns(text, 1, &length);
    return columns;
}

size_t cli_fitting(const char *text, size_t length, int columns)
{
    size_t end = 0;
    while (end < length) {
        size_t more = 0;
        columns -= character_columns(text + end, 2, &more);
        if (columns < 0 || more > length - end)
            break;
        end += more;
    }
    return end;
}

/* ---- escaping ---- */

static size_t text_escape_bytes(char *out, const unsigned char *at, size_t length)
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

static void text_escape(const char *text, bool backslashes, char *out, size_t size)
{
    const unsigned char *at = (const unsigned char *)text;
    size_t used = 0;
    while (*at != '\0') {
        size_t length = cli_utf8_length(at), made = 0;
        char piece[4 * 4];
        if (length == 0 || cli_is_control(cli_utf8_decode(at, length))) {
            length = length == 0 ? 1 : length;
            made = text_escape_bytes(piece, at, length);
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

void cli_escape(const char *text, char *out, size_t size)
{
    text_escape(text, true, out, size);
}

void cli_escape_controls(const char *text, char *out, size_t size)
{
    text_escape(text, false, out, size);
}
