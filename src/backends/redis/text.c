/*
 * Requests are written straight into the buffer that is sent; hiredis reads the replies.
 */
#include <stdarg.h>
#include <string.h>

#include "syncguard/sys/alloc.h"
#include "text.h"

/* The longest text that is sent at once. */
#define MAX_TEXT (64u << 20)

void sg_redis_text_init(sg_redis_text *text)
{
    text->data = text->local;
    text->length = 0;
    text->size = sizeof text->local;
    text->failed = false;
}

void sg_redis_text_free(sg_redis_text *text)
{
    if (text->data != NULL && text->data != text->local)
        syncguard_free(text->data);
    sg_redis_text_init(text);
}

bool sg_redis_text_reserve(sg_redis_text *text, size_t size)
{
    text->data = syncguard_malloc(size);
    text->failed = text->data == NULL;
    text->size = text->failed ? 0 : size;
    text->length = 0;
    return !text->failed;
}

static bool redis_text_grow(sg_redis_text *text, size_t length)
{
    if (text->failed)
        return false;
    if (length <= text->size - text->length)
        return true;
    size_t size = text->size > 0 ? text->size : sizeof text->local;
    while (size - text->length < length && size <= MAX_TEXT)
        size *= 2;
    char *data = NULL;
    if (size <= MAX_TEXT)
        data = syncguard_malloc(size);
    if (data == NULL) {
        text->failed = true;
        return false;
    }
    memcpy(data, text->data, text->length);
    if (text->data != text->local)
        syncguard_free(text->data);
    text->data = data;
    text->size = size;
    return true;
}

void sg_redis_text_add(sg_redis_text *text, const void *data, size_t length)
{
    if (!redis_text_grow(text, length))
        return;
    memcpy(text->data + text->length, data, length);
    text->length += length;
}

/* Digits of value at the end of buffer; returns where they begin. */
static char *redis_text_put_digits(uint64_t value, char *end)
{
    do {
        *--end = (char)('0' + value % 10);
        value /= 10;
    } while (value != 0);
    return end;
}

static void redis_text_add_head(sg_redis_text *text, char mark, size_t value)
{
    char buffer[24];
    char *end = buffer + sizeof buffer;
    end[-1] = '\n';
    end[-2] = '\r';
    char *start = redis_text_put_digits(value, end - 2);
    *--start = mark;
    sg_redis_text_add(text, start, (size_t)(end - start));
}

void sg_redis_text_command(sg_redis_text *text, size_t count)
{
    redis_text_add_head(text, '*', count);
}

void sg_redis_text_arg(sg_redis_text *text, const void *data, size_t length)
{
    char buffer[24];
    char *end = buffer + sizeof buffer;
    char *start = redis_text_put_digits(length, end);
    size_t head = (size_t)(end - start);
    if (!redis_text_grow(text, length + head + 5))
        return;
    char *at = text->data + text->length;
    *at++ = '$';
    memcpy(at, start, head);
    at += head;
    *at++ = '\r';
    *at++ = '\n';
    memcpy(at, data, length);
    at += length;
    *at++ = '\r';
    *at++ = '\n';
    text->length = (size_t)(at - text->data);
}

void sg_redis_text_arg_str(sg_redis_text *text, const char *string)
{
    sg_redis_text_arg(text, string, strlen(string));
}

void sg_redis_text_arg_int(sg_redis_text *text, int64_t value)
{
    char buffer[24];
    char *end = buffer + sizeof buffer;
    char *start = redis_text_put_digits(value < 0 ? 0 - (uint64_t)value : (uint64_t)value, end);
    if (value < 0)
        *--start = '-';
    sg_redis_text_arg(text, start, (size_t)(end - start));
}

void sg_redis_text_words(sg_redis_text *text, const char *first, ...)
{
    va_list words;
    size_t count = 0;
    va_start(words, first);
    for (const char *word = first; word != NULL; word = va_arg(words, const char *))
        count++;
    va_end(words);
    sg_redis_text_command(text, count);
    va_start(words, first);
    for (const char *word = first; word != NULL; word = va_arg(words, const char *))
        sg_redis_text_arg_str(text, word);
    va_end(words);
}
