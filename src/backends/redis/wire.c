/*
 * Requests in the server's protocol, and what its error words mean.
 *
 * Requests are written straight into the buffer that is sent; hiredis reads the
 * replies. Errors are told apart by the code word that starts them and by
 * nothing else: the rest of the text may quote keys.
 */
#include <string.h>

#include "internal.h"

/* Nobody sends more than this at once. */
#define MAX_TEXT (64u << 20)

void sg_redis_text_init(sg_text *text)
{
    text->data = text->local;
    text->length = 0;
    text->size = sizeof text->local;
    text->failed = false;
}

void sg_redis_text_free(sg_text *text)
{
    if (text->data != NULL && text->data != text->local)
        syncguard_free(text->data);
    sg_redis_text_init(text);
}

bool sg_redis_text_reserve(sg_text *text, size_t size)
{
    text->data = syncguard_malloc(size);
    text->failed = text->data == NULL;
    text->size = text->failed ? 0 : size;
    text->length = 0;
    return !text->failed;
}

static bool make_room(sg_text *text, size_t length)
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

void sg_redis_text_add(sg_text *text, const void *data, size_t length)
{
    if (!make_room(text, length))
        return;
    memcpy(text->data + text->length, data, length);
    text->length += length;
}

/* Digits of value at the end of buffer; returns where they begin. */
static char *digits(uint64_t value, char *end)
{
    do {
        *--end = (char)('0' + value % 10);
        value /= 10;
    } while (value != 0);
    return end;
}

static void add_head(sg_text *text, char mark, size_t value)
{
    char buffer[24];
    char *end = buffer + sizeof buffer;
    end[-1] = '\n';
    end[-2] = '\r';
    char *start = digits(value, end - 2);
    *--start = mark;
    sg_redis_text_add(text, start, (size_t)(end - start));
}

void sg_redis_text_command(sg_text *text, size_t count)
{
    add_head(text, '*', count);
}

void sg_redis_text_arg(sg_text *text, const void *data, size_t length)
{
    char buffer[24];
    char *end = buffer + sizeof buffer;
    char *start = digits(length, end);
    size_t head = (size_t)(end - start);
    if (!make_room(text, length + head + 5))
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

void sg_redis_text_arg_str(sg_text *text, const char *string)
{
    sg_redis_text_arg(text, string, strlen(string));
}

void sg_redis_text_arg_int(sg_text *text, int64_t value)
{
    char buffer[24];
    char *end = buffer + sizeof buffer;
    char *start = digits(value < 0 ? 0 - (uint64_t)value : (uint64_t)value, end);
    if (value < 0)
        *--start = '-';
    sg_redis_text_arg(text, start, (size_t)(end - start));
}

void sg_redis_reply_word(const redisReply *reply, char out[SG_WORD_SIZE])
{
    out[0] = '\0';
    if (reply == NULL || reply->type != REDIS_REPLY_ERROR)
        return;
    const char *from = reply->str;
    size_t length = (size_t)reply->len;
    /* Servers before 7 put a second dash before errors that a script hands on. */
    while (length > 0 && *from == '-') {
        from++;
        length--;
    }
    size_t n = 0;
    while (n < length && n < SG_WORD_SIZE - 1 &&
           ((from[n] >= 'A' && from[n] <= 'Z') || from[n] == '_'))
        n++;
    if (n < length && from[n] != ' ')
        n = 0; /* no code word */
    memcpy(out, from, n);
    out[n] = '\0';
}

static const struct {
    const char *word;
    syncguard_status status;
    const char *text;
} meanings[] = {
    {"NOAUTH", SYNCGUARD_E_AUTH_FAILED, "the server wants a password"},
    {"WRONGPASS", SYNCGUARD_E_AUTH_FAILED, "the server refused user or password"},
    {"NOPERM", SYNCGUARD_E_AUTH_FAILED, "the user lacks a permission"},
    {"DENIED", SYNCGUARD_E_AUTH_FAILED, "the server is in protected mode"},
    {"LOADING", SYNCGUARD_E_SERVICE_UNAVAILABLE, "the server is loading its data"},
    {"MASTERDOWN", SYNCGUARD_E_SERVICE_UNAVAILABLE, "the replica has lost its primary"},
    {"READONLY", SYNCGUARD_E_SERVICE_UNAVAILABLE, "the server is a replica"},
    {"CLUSTERDOWN", SYNCGUARD_E_SERVICE_UNAVAILABLE, "the cluster is down"},
    {"TRYAGAIN", SYNCGUARD_E_SERVICE_UNAVAILABLE, "the slot is being moved"},
    {"MOVED", SYNCGUARD_E_SERVICE_UNAVAILABLE, "the slot is elsewhere"},
    {"ASK", SYNCGUARD_E_SERVICE_UNAVAILABLE, "the slot is being moved"},
    {"CROSSSLOT", SYNCGUARD_E_INVALID_ARGUMENT,
     "the server is a cluster: the prefix needs a hash tag"},
    {"BUSY", SYNCGUARD_E_SERVICE_UNAVAILABLE, "the server is busy with a script"},
    {"UNKILLABLE", SYNCGUARD_E_SERVICE_UNAVAILABLE, "the server is busy with a script"},
    {"MISCONF", SYNCGUARD_E_SERVICE_UNAVAILABLE, "the server cannot persist and refuses writes"},
    {"NOREPLICAS", SYNCGUARD_E_SERVICE_UNAVAILABLE, "the server has too few replicas"},
    {"UNBLOCKED", SYNCGUARD_E_SERVICE_UNAVAILABLE, "the server changed its role"},
    {"NOMASTERLINK", SYNCGUARD_E_SERVICE_UNAVAILABLE, "the replica has lost its primary"},
    {"IOERR", SYNCGUARD_E_SERVICE_UNAVAILABLE, "the server could not reach another node"},
    {"OOM", SYNCGUARD_E_RATE_LIMITED, "the server has reached its memory limit"},
    {"WRONGTYPE", SYNCGUARD_E_INTERNAL, "foreign data under a name of ours"},
};

syncguard_status sg_redis_fail_reply(syncguard_error *err, const redisReply *reply)
{
    char word[SG_WORD_SIZE];
    sg_redis_reply_word(reply, word);
    for (size_t i = 0; i < sizeof meanings / sizeof meanings[0]; i++) {
        if (strcmp(word, meanings[i].word) == 0)
            return syncguard_fail(err, meanings[i].status, word, "redis: %s", meanings[i].text);
    }
    if (word[0] != '\0')
        return syncguard_fail(err, SYNCGUARD_E_INTERNAL, word,
                              "redis: the server refused the command");
    return syncguard_fail(err, SYNCGUARD_E_INTERNAL, NULL, "redis: unexpected reply");
}

syncguard_status sg_redis_fail_value(syncguard_error *err)
{
    return syncguard_fail(err, SYNCGUARD_E_INTERNAL, "VALUE",
                          "redis: the stored record cannot be read; it was left as it is");
}

void sg_redis_replies_free(redisReply **replies, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (replies[i] != NULL)
            freeReplyObject(replies[i]);
        replies[i] = NULL;
    }
}
