/*
 * What the server's replies and the answers of scripts mean. Error replies are distinguished by the
 * code word that they start with, because the rest of the text may quote keys. One text is searched
 * for, because servers before 7.2 have no code word for a permission that is missing inside a
 * script.
 */
#include "errors.h"

#include <errno.h>
#include <string.h>

#include "scripts.h"

void sg_redis_reply_word(const redisReply *reply, char out[SG_REDIS_WORD_SIZE])
{
    out[0] = '\0';
    if (reply == NULL || reply->type != REDIS_REPLY_ERROR)
        return;
    const char *from = reply->str;
    size_t length = (size_t)reply->len;
    /* Servers before 7 put a second dash before errors that a script passes on. */
    while (length > 0 && *from == '-') {
        from++;
        length--;
    }
    size_t n = 0;
    while (n < length && n < SG_REDIS_WORD_SIZE - 1 &&
           ((from[n] >= 'A' && from[n] <= 'Z') || from[n] == '_'))
        n++;
    if (n < length && from[n] != ' ')
        n = 0; /* no code word */
    memcpy(out, from, n);
    out[n] = '\0';
    if (strcmp(out, "ERR") == 0 && strstr(from, "The user executing the script ") != NULL)
        memcpy(out, "NOPERM", sizeof "NOPERM");
}

bool sg_redis_reply_is(const redisReply *reply, const char *word)
{
    char found[SG_REDIS_WORD_SIZE];
    sg_redis_reply_word(reply, found);
    return strcmp(found, word) == 0;
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
    {"TRYAGAIN", SYNCGUARD_E_SERVICE_UNAVAILABLE, "the hash slot is being moved"},
    {"MOVED", SYNCGUARD_E_SERVICE_UNAVAILABLE, "the hash slot is elsewhere"},
    {"ASK", SYNCGUARD_E_SERVICE_UNAVAILABLE, "the hash slot is being moved"},
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
    char word[SG_REDIS_WORD_SIZE];
    sg_redis_reply_word(reply, word);
    for (size_t i = 0; i < sizeof meanings / sizeof meanings[0]; i++) {
        if (strcmp(word, meanings[i].word) == 0)
            return syncguard_fail(err, meanings[i].status, word, "%s", meanings[i].text);
    }
    if (word[0] != '\0')
        return syncguard_fail(err, SYNCGUARD_E_INTERNAL, word, "the server refused the command");
    return syncguard_fail(err, SYNCGUARD_E_INTERNAL, NULL, "unexpected reply");
}

syncguard_status sg_redis_fail_answer(int64_t answer, syncguard_error *err)
{
    switch (answer) {
    case SG_REDIS_BAD_RECORD:
        return sg_redis_fail_record(err);
    case SG_REDIS_BAD_COUNTER:
        return syncguard_fail(err, SYNCGUARD_E_INTERNAL, "COUNTER",
                              "the fence counter is not readable; it was left as it is");
    case SG_REDIS_COUNTER_ENDS:
        return syncguard_fail(err, SYNCGUARD_E_INTERNAL, "COUNTER",
                              "the fence counter has reached its limit");
    case SG_REDIS_ID_SPENT:
        return syncguard_fail(err, SYNCGUARD_E_INTERNAL, "SPENT",
                              "this lock id has been taken back");
    case SG_REDIS_ELSEWHERE:
        return syncguard_fail(err, SYNCGUARD_E_INTERNAL, "INDEX",
                              "the index names something that cannot be read");
    default:
        return syncguard_fail(err, SYNCGUARD_E_INTERNAL, NULL, "unexpected answer");
    }
}

syncguard_status sg_redis_fail_record(syncguard_error *err)
{
    return syncguard_fail(err, SYNCGUARD_E_INTERNAL, "VALUE",
                          "the stored record cannot be read; it was left as it is");
}

#define BROKEN "EOF"

syncguard_status sg_redis_fail_connection(syncguard_error *err)
{
    return syncguard_fail(err, SYNCGUARD_E_SERVICE_UNAVAILABLE, BROKEN, "the connection broke");
}

bool sg_redis_is_broken(syncguard_status status, const syncguard_error *err)
{
    return status == SYNCGUARD_E_SERVICE_UNAVAILABLE && strcmp(err->native, BROKEN) == 0;
}

syncguard_status sg_redis_fail_moving(syncguard_error *err)
{
    return syncguard_fail(err, SYNCGUARD_E_SERVICE_UNAVAILABLE, "TRYAGAIN",
                          "the hash slot of the lock is being moved to another node");
}

syncguard_status sg_redis_fail_replicas(syncguard_error *err)
{
    return syncguard_fail(err, SYNCGUARD_E_SERVICE_UNAVAILABLE, "NOREPLICAS",
                          "too few replicas have confirmed the write");
}

syncguard_status sg_redis_fail_errno(syncguard_error *err, int number, const char *what)
{
    switch (number) {
    case EMFILE:
    case ENFILE:
    case ENOBUFS:
        return syncguard_fail(err, SYNCGUARD_E_RATE_LIMITED, "EMFILE", "no descriptor left");
    case ENOMEM:
        return syncguard_fail_memory(err);
    case EACCES:
    case EPERM:
        return syncguard_fail(err, SYNCGUARD_E_AUTH_FAILED, "EACCES", "%s: not permitted", what);
    case ECONNREFUSED:
        return syncguard_fail(err, SYNCGUARD_E_SERVICE_UNAVAILABLE, "ECONNREFUSED",
                              "%s: connection refused", what);
    case ENOENT:
        return syncguard_fail(err, SYNCGUARD_E_SERVICE_UNAVAILABLE, "ENOENT", "%s: no such socket",
                              what);
    default:
        return syncguard_fail(err, SYNCGUARD_E_SERVICE_UNAVAILABLE, NULL, "%s: %s", what,
                              syncguard_errno_text(number));
    }
}
