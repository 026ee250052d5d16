/*
 * One call of a script, from encoding to its answer, within one operation's
 * limits: the same request is sent again when a connection breaks, when the
 * server has forgotten the script, and when the cluster says that the slot is
 * elsewhere. Sending again is safe because every script acts by lock id.
 */
#include <string.h>

#include "internal.h"
#include "scripts.h"

/* A server that breaks every connection must not be asked for ever, and after a few times not in a
 * hurry. */
#define MAX_BREAKS 12
#define QUICK_BREAKS 3
#define MAX_REDIRECTS 16

void sg_redis_call_init(sg_call *call, sg_script_id script, int keys)
{
    call->script = script;
    call->word = NULL;
    call->keys = keys;
    call->alone = script == SG_READ;
    call->arg_count = 0;
    call->watch_name = NULL;
    call->watch_length = 0;
    call->contended = false;
    call->confirm = false;
    call->link = NULL;
    call->reply = NULL;
    call->moving = false;
    call->asked = false;
    call->armed = false;
    call->confirmed = false;
    call->again = false;
    call->unanswered = false;
    call->first_sent_ns = 0;
    sg_redis_text_init(&call->args);
}

void sg_redis_call_change(sg_call *call, sg_script_id script)
{
    sg_redis_call_free(call);
    sg_redis_text_init(&call->args);
    call->script = script;
    call->word = NULL;
    call->keys = 1;
    call->alone = true;
    call->arg_count = 0;
}

void sg_redis_call_free(sg_call *call)
{
    sg_redis_replies_free(&call->reply, 1);
    sg_redis_text_free(&call->args);
}

void sg_redis_call_arg(sg_call *call, const void *data, size_t length)
{
    sg_redis_text_arg(&call->args, data, length);
    call->arg_count++;
}

void sg_redis_call_arg_int(sg_call *call, int64_t value)
{
    sg_redis_text_arg_int(&call->args, value);
    call->arg_count++;
}

void sg_redis_call_encode(const sg_call *call, bool by_sha, sg_text *out)
{
    const sg_script *script = &sg_redis_scripts[call->script];
    if (call->word != NULL) {
        sg_redis_text_command(out, call->arg_count + 1);
        sg_redis_text_arg_str(out, call->word);
    } else {
        sg_redis_text_command(out, call->arg_count + 3);
        sg_redis_text_arg_str(out, by_sha ? "EVALSHA" : "EVAL");
        sg_redis_text_arg_str(out, by_sha ? script->sha : script->text);
        sg_redis_text_arg_int(out, call->keys);
    }
    sg_redis_text_add(out, call->args.data, call->args.length);
    if (call->args.failed)
        out->failed = true;
}

sg_link *sg_redis_link_choose(sg_backend *backend)
{
    sg_link *best = &backend->links[0];
    int least = atomic_load_explicit(&best->pending, memory_order_relaxed);
    for (int i = 1; i < backend->config.connections && least > 0; i++) {
        int pending = atomic_load_explicit(&backend->links[i].pending, memory_order_relaxed);
        if (pending < least) {
            least = pending;
            best = &backend->links[i];
        }
    }
    return best;
}

syncguard_status sg_redis_pause(int round, const syncguard_limits *limits, syncguard_error *err)
{
    int64_t ms = INT64_C(1) << (round < 6 ? round : 6);
    return syncguard_wait_until(syncguard_clock_ns() + ms * SYNCGUARD_NS_PER_MS, limits, err);
}

void sg_redis_text_wait(const sg_backend *backend, const syncguard_limits *limits, sg_text *out)
{
    int64_t left = syncguard_limits_left_ns(limits);
    int64_t wait_ms = left == SYNCGUARD_NO_DEADLINE ? SYNCGUARD_DEFAULT_TIMEOUT_MS
                                                    : left / SYNCGUARD_NS_PER_MS * 3 / 4;
    sg_redis_text_command(out, 3);
    sg_redis_text_arg_str(out, "WAIT");
    sg_redis_text_arg_int(out, backend->config.wait_replicas);
    sg_redis_text_arg_int(out, wait_ms > 0 ? wait_ms : 1);
}

bool sg_redis_replicas_have_it(const sg_backend *backend, const redisReply *reply)
{
    return reply->type == REDIS_REPLY_INTEGER && reply->integer >= backend->config.wait_replicas;
}

syncguard_status sg_redis_fail_replicas(syncguard_error *err)
{
    return syncguard_fail(err, SYNCGUARD_E_SERVICE_UNAVAILABLE, "NOREPLICAS",
                          "redis: too few replicas have confirmed the write");
}

/* What a call has been through. */
typedef struct progress {
    bool by_sha;
    bool asking;
    int breaks;
    int redirects;
    int pauses;
    int refusals;
    char ask_host[256]; /* valid while asking */
    int ask_port;
    sg_request request;
} progress;

/* Whether nothing of what arms a try was refused; what never will be permitted ends the reporting.
 */
static bool permitted(sg_backend *backend, redisReply *const *replies, size_t count)
{
    bool all = true;
    for (size_t i = 0; i < count; i++) {
        char word[SG_WORD_SIZE];
        sg_redis_reply_word(replies[i], word);
        all = all && word[0] == '\0';
        if (strcmp(word, "NOPERM") == 0)
            sg_redis_tracker_answer(backend->tracker, 0, replies[i]);
    }
    return all;
}

/*
 * One exchange; replies of what goes before the script are dropped. WAIT leaves in the same
 * request as the script, so that it always asks about what this connection has just written: a
 * connection that wrote nothing would be told "all".
 */
static syncguard_status send_once(sg_backend *backend, sg_call *call, progress *p, sg_link *link,
                                  const syncguard_limits *limits, syncguard_error *err)
{
    redisReply *replies[4];
    sg_text text;
    size_t count = 1; /* up to the script */
    bool watch = call->watch_name != NULL && !p->asking;
    sg_redis_text_init(&text);
    if (watch) {
        sg_redis_text_command(&text, 3);
        sg_redis_text_arg_str(&text, "CLIENT");
        sg_redis_text_arg_str(&text, "CACHING");
        sg_redis_text_arg_str(&text, "YES");
        sg_redis_text_command(&text, 2);
        sg_redis_text_arg_str(&text, "EXISTS");
        sg_redis_text_arg(&text, call->watch_name, call->watch_length);
        count = 3;
    }
    if (p->asking) {
        sg_redis_text_command(&text, 1);
        sg_redis_text_arg_str(&text, "ASKING");
        count = 2;
    }
    sg_redis_call_encode(call, p->by_sha, &text);
    if (call->confirm)
        sg_redis_text_wait(backend, limits, &text);
    p->request.text = &text;
    p->request.replies = replies;
    p->request.count = call->confirm ? count + 1 : count;
    p->request.watch = watch;
    p->request.hurry = watch || call->contended;
    syncguard_status status = sg_redis_link_exchange(link, &p->request, limits, err);
    if (p->request.sent && call->first_sent_ns == 0)
        call->first_sent_ns = p->request.sent_ns;
    if (status == SYNCGUARD_OK) {
        bool armed = p->request.armed && permitted(backend, replies, count - 1);
        sg_redis_replies_free(replies, count - 1);
        sg_redis_replies_free(&call->reply, 1);
        call->reply = replies[count - 1];
        call->armed = armed;
        call->confirmed = call->confirm && sg_redis_replicas_have_it(backend, replies[count]);
        if (call->confirm)
            sg_redis_replies_free(&replies[count], 1);
    } else if (p->request.sent) {
        call->unanswered = true;
    }
    sg_redis_text_free(&text);
    return status;
}

/* The node that the slot moves to. A WAIT would hold up others, so it has a connection of its own.
 */
static syncguard_status send_asking(sg_backend *backend, sg_call *call, progress *p,
                                    const syncguard_limits *limits, syncguard_error *err)
{
    sg_link own, *link = &backend->ask;
    if (call->confirm) {
        syncguard_status status = sg_redis_link_init(&own, backend, err);
        if (status != SYNCGUARD_OK)
            return status;
        link = &own;
    }
    sg_redis_link_aim(link, p->ask_host, p->ask_port);
    syncguard_status status = send_once(backend, call, p, link, limits, err);
    if (link == &own)
        sg_redis_link_fini(&own, false);
    return status;
}

syncguard_status sg_redis_fail_moving(syncguard_error *err)
{
    return syncguard_fail(err, SYNCGUARD_E_SERVICE_UNAVAILABLE, "TRYAGAIN",
                          "redis: the slot of the lock is being moved to another node");
}

/* Waits a little for the server to be able to answer; its own error if there is no time. */
static syncguard_status pause_for(sg_call *call, progress *p, const syncguard_limits *limits,
                                  syncguard_error *err)
{
    syncguard_status status = sg_redis_pause(p->pauses++, limits, err);
    if (status == SYNCGUARD_E_NETWORK_TIMEOUT)
        status = sg_redis_fail_reply(err, call->reply);
    return status;
}

/*
 * MOVED, ASK and TRYAGAIN. OK if the call should be sent again, or is not to be carried out while
 * the slot moves; ABSENT for other errors.
 */
static syncguard_status follow(sg_backend *backend, sg_call *call, progress *p, const char *word,
                               const syncguard_limits *limits, syncguard_error *err)
{
    char host[256];
    int port = 0;
    bool was_asking = p->asking;
    p->asking = false;
    if (strcmp(word, "TRYAGAIN") != 0 &&
        !sg_redis_route_parse(call->reply, p->request.peer, host, &port))
        return SYNCGUARD_ABSENT;
    if (strcmp(word, "MOVED") == 0) {
        if (p->redirects++ >= MAX_REDIRECTS)
            return SYNCGUARD_ABSENT;
        sg_redis_route_moved(&backend->route, host, port);
        /* Nodes that point at each other are not asked in a hurry. */
        return p->redirects > 3 ? pause_for(call, p, limits, err) : SYNCGUARD_OK;
    }
    if (!call->alone) {
        call->moving = true;
        return SYNCGUARD_OK;
    }
    if (was_asking || strcmp(word, "TRYAGAIN") == 0)
        return pause_for(call, p, limits, err);
    memcpy(p->ask_host, host, sizeof host);
    p->ask_port = port;
    p->asking = true;
    return SYNCGUARD_OK;
}

/* An error reply: OK if the call should be sent again (or call->moving is set), else the failure.
 */
static syncguard_status judge_error(sg_backend *backend, sg_call *call, progress *p,
                                    const syncguard_limits *limits, syncguard_error *err)
{
    char word[SG_WORD_SIZE];
    sg_redis_reply_word(call->reply, word);
    if (strcmp(word, "NOSCRIPT") == 0 && p->by_sha) {
        p->by_sha = false;
        return SYNCGUARD_OK;
    }
    if (backend->config.mode == SYNCGUARD_REDIS_CLUSTER) {
        syncguard_status status = follow(backend, call, p, word, limits, err);
        if (status != SYNCGUARD_ABSENT)
            return status;
    }
    if (strcmp(word, "READONLY") == 0) {
        sg_redis_route_forget(&backend->route, p->request.route);
        if (backend->config.mode == SYNCGUARD_REDIS_SENTINEL && p->refusals++ < 1)
            return SYNCGUARD_OK;
    }
    return sg_redis_fail_reply(err, call->reply);
}

/* Reading scripts answer with an array that begins with the time, the others with a number or text.
 */
static bool answered(const sg_call *call)
{
    const redisReply *reply = call->reply;
    if (call->word != NULL)
        return true;
    if (call->script == SG_READ || call->script == SG_FIND)
        return reply->type == REDIS_REPLY_ARRAY && reply->elements > 0 &&
               reply->element[0]->type == REDIS_REPLY_INTEGER;
    return reply->type == REDIS_REPLY_INTEGER || reply->type == REDIS_REPLY_STRING;
}

/* The script ran on a node that has only half of the names: the slot is on its way. */
static bool met_half(const sg_backend *backend, const sg_call *call)
{
    const redisReply *mark = call->reply;
    if (backend->config.mode != SYNCGUARD_REDIS_CLUSTER || call->alone)
        return false;
    if (call->script == SG_FIND)
        mark = mark->elements > 1 ? mark->element[1] : mark->element[0];
    return mark->type == REDIS_REPLY_INTEGER && mark->integer == -6;
}

syncguard_status sg_redis_call_run(sg_backend *backend, sg_call *call,
                                   const syncguard_limits *limits, syncguard_error *err)
{
    progress p;
    memset(&p, 0, offsetof(progress, request));
    p.request.route = 0;
    p.by_sha = true;
    call->moving = false;
    for (;;) {
        syncguard_status status;
        if (p.asking)
            status = send_asking(backend, call, &p, limits, err);
        else
            status = send_once(backend, call, &p,
                               call->link != NULL ? call->link : sg_redis_link_choose(backend),
                               limits, err);
        if (status == SYNCGUARD_E_SERVICE_UNAVAILABLE && p.request.sent &&
            p.breaks++ < MAX_BREAKS) {
            call->again = true;
            if (p.breaks > QUICK_BREAKS && sg_redis_pause(p.breaks, limits, NULL) != SYNCGUARD_OK)
                return status;
            continue;
        }
        if (status != SYNCGUARD_OK)
            return status;
        if (call->reply->type == REDIS_REPLY_ERROR) {
            status = judge_error(backend, call, &p, limits, err);
        } else if (!answered(call)) {
            return sg_redis_fail_reply(err, call->reply);
        } else {
            call->moving = met_half(backend, call);
            call->asked = p.asking;
            sg_redis_topology_refresh(backend, limits);
            return SYNCGUARD_OK;
        }
        if (status != SYNCGUARD_OK || call->moving)
            return status;
    }
}

/* MOVED or READONLY in any of the replies: the route is set right and the whole is sent again. */
static bool redirected(sg_backend *backend, const sg_request *request, int *refusals)
{
    char host[256];
    char word[SG_WORD_SIZE];
    int port = 0;
    if (backend->config.mode == SYNCGUARD_REDIS_SINGLE)
        return false;
    for (size_t i = 0; i < request->count; i++) {
        sg_redis_reply_word(request->replies[i], word);
        if (strcmp(word, "READONLY") == 0) {
            sg_redis_route_forget(&backend->route, request->route);
            return (*refusals)++ < 1;
        }
        if (backend->config.mode == SYNCGUARD_REDIS_CLUSTER && strcmp(word, "MOVED") == 0 &&
            sg_redis_route_parse(request->replies[i], request->peer, host, &port)) {
            sg_redis_route_moved(&backend->route, host, port);
            return true;
        }
    }
    return false;
}

syncguard_status sg_redis_plain_run(sg_backend *backend, const sg_text *text, redisReply **replies,
                                    size_t count, const syncguard_limits *limits,
                                    syncguard_error *err)
{
    return sg_redis_plain_run_on(backend, NULL, text, replies, count, limits, err);
}

syncguard_status sg_redis_plain_run_on(sg_backend *backend, sg_link *link, const sg_text *text,
                                       redisReply **replies, size_t count,
                                       const syncguard_limits *limits, syncguard_error *err)
{
    sg_request request;
    memset(&request, 0, sizeof request);
    request.text = text;
    request.replies = replies;
    request.count = count;
    int refusals = 0;
    for (int round = 0;; round++) {
        syncguard_status status = sg_redis_link_exchange(
            link != NULL ? link : sg_redis_link_choose(backend), &request, limits, err);
        if (round >= MAX_BREAKS)
            return status;
        if (status == SYNCGUARD_E_SERVICE_UNAVAILABLE && request.sent) {
            if (round > QUICK_BREAKS && sg_redis_pause(round, limits, NULL) != SYNCGUARD_OK)
                return status;
            continue;
        }
        if (status != SYNCGUARD_OK || !redirected(backend, &request, &refusals))
            return status;
        sg_redis_replies_free(replies, count);
    }
}
