/*
 * One request within one operation's limits: it is sent again when a connection breaks, when the
 * server has forgotten the script, and when the cluster says that the hash slot is elsewhere.
 * Sending again is safe because every script acts by lock id.
 */
#include "request.h"

#include <string.h>

/* A request is not sent forever to a server that breaks every connection, and after a few times
 * with pauses. */
#define MAX_BREAKS 12
#define QUICK_BREAKS 3
#define MAX_REDIRECTS 16
/* How often the nodes of a Cluster are asked for over a connection that lasts. */
#define REFRESH_NS (60000 * SYNCGUARD_NS_PER_MS)
#define REFRESH_LIMIT_NS (1000 * SYNCGUARD_NS_PER_MS)

/* ---- encoding ---- */

void sg_redis_request_init(sg_redis_request *request, sg_redis_backend *backend,
                           const syncguard_limits *limits, sg_redis_script_id script)
{
    request->backend = backend;
    request->limits = limits;
    request->script = script;
    request->command = NULL;
    request->one_name = script == SG_REDIS_SCRIPT_READ;
    request->arg_count = 0;
    request->watch = NULL;
    request->spin = request->confirm = false;
    request->link = NULL;
    request->reply = NULL;
    request->hash_slot = SG_REDIS_HASH_SLOT_STABLE;
    request->confirmed = request->armed = request->sent_again = request->unanswered = false;
    request->first_sent_ns = 0;
    sg_redis_text_init(&request->args);
}

void sg_redis_request_use_script(sg_redis_request *request, sg_redis_script_id script,
                                 const sg_redis_name *name)
{
    sg_redis_request_free(request);
    sg_redis_text_init(&request->args);
    request->script = script;
    request->command = NULL;
    request->one_name = true;
    request->arg_count = 0;
    sg_redis_request_arg_name(request, name);
}

void sg_redis_request_use_command(sg_redis_request *request, const char *command,
                                  const sg_redis_name *name)
{
    sg_redis_request_use_script(request, SG_REDIS_SCRIPTS, name);
    request->command = command;
}

void sg_redis_request_free(sg_redis_request *request)
{
    sg_redis_replies_free(&request->reply, 1);
    sg_redis_text_free(&request->args);
}

void sg_redis_request_arg(sg_redis_request *request, const void *data, size_t length)
{
    sg_redis_text_arg(&request->args, data, length);
    request->arg_count++;
}

void sg_redis_request_arg_name(sg_redis_request *request, const sg_redis_name *name)
{
    sg_redis_request_arg(request, name->text, name->length);
}

void sg_redis_request_arg_int(sg_redis_request *request, int64_t value)
{
    sg_redis_text_arg_int(&request->args, value);
    request->arg_count++;
}

static int redis_script_key_count(sg_redis_script_id script)
{
    if (script == SG_REDIS_SCRIPT_ACQUIRE)
        return 3;
    return script == SG_REDIS_SCRIPT_UNDO || script == SG_REDIS_SCRIPT_CLEANUP ? 2 : 1;
}

static void redis_request_append(const sg_redis_request *request, bool by_sha, sg_redis_text *out)
{
    if (request->command != NULL) {
        sg_redis_text_command(out, request->arg_count + 1);
        sg_redis_text_arg_str(out, request->command);
    } else {
        const sg_redis_script *script = &sg_redis_scripts[request->script];
        sg_redis_text_command(out, request->arg_count + 3);
        sg_redis_text_arg_str(out, by_sha ? "EVALSHA" : "EVAL");
        sg_redis_text_arg_str(out, by_sha ? script->sha : script->text);
        sg_redis_text_arg_int(out, redis_script_key_count(request->script));
    }
    sg_redis_text_add(out, request->args.data, request->args.length);
    if (request->args.failed)
        out->failed = true;
}

void sg_redis_request_encode(const sg_redis_request *request, sg_redis_text *out)
{
    redis_request_append(request, true, out);
}

/* ---- sending once ---- */

/* The shared link with the fewest round trips under way. */
static sg_redis_link *redis_request_choose_link(sg_redis_backend *backend)
{
    sg_redis_link *best = &backend->links[0];
    int least = atomic_load_explicit(&best->load, memory_order_relaxed);
    for (int i = 1; i < backend->config.connections && least > 0; i++) {
        int load = atomic_load_explicit(&backend->links[i].load, memory_order_relaxed);
        if (load < least) {
            least = load;
            best = &backend->links[i];
        }
    }
    return best;
}

/* Asks for the nodes of a Cluster, once in a while. */
static void redis_request_refresh_topology(sg_redis_backend *backend,
                                           const syncguard_limits *limits)
{
    sg_redis_text text;
    if (backend->config.mode != SYNCGUARD_REDIS_CLUSTER ||
        !sg_redis_topology_due(&backend->topology, REFRESH_NS))
        return;
    syncguard_limits share =
        syncguard_limits_until(limits, syncguard_clock_ns() + REFRESH_LIMIT_NS);
    sg_redis_text_init(&text);
    sg_redis_text_words(&text, "CLUSTER", "SLOTS", NULL);
    redisReply *reply = NULL;
    sg_redis_round_trip trip = {.text = &text, .replies = &reply, .count = 1};
    if (sg_redis_link_round_trip(redis_request_choose_link(backend), &trip, &share, NULL) ==
        SYNCGUARD_OK)
        sg_redis_topology_read_hash_slots(&backend->topology, reply, trip.peer);
    sg_redis_replies_free(&reply, 1);
    sg_redis_text_free(&text);
}

/* What has happened to a request so far. */
typedef struct progress {
    bool by_sha;
    bool asking;
    int breaks;
    int redirects;
    int pauses;
    int refusals;
    char ask_host[256]; /* valid while asking */
    int ask_port;
    sg_redis_round_trip trip;
} progress;

/* Whether none of the commands that arm a try was refused. A missing permission turns notifications
 * off. */
static bool redis_tracking_check_replies(sg_redis_tracker *tracker, redisReply *const *replies,
                                         size_t count)
{
    bool all = true;
    for (size_t i = 0; i < count; i++) {
        all = all && replies[i]->type != REDIS_REPLY_ERROR;
        if (sg_redis_reply_is(replies[i], "NOPERM"))
            sg_redis_tracker_answer(tracker, 0, replies[i]);
    }
    return all;
}

/* Adds the commands that go before the script; returns how many. */
static size_t redis_request_add_preamble(const sg_redis_request *request, const progress *p,
                                         sg_redis_text *text)
{
    if (p->asking) {
        sg_redis_text_words(text, "ASKING", NULL);
        return 1;
    }
    if (request->watch == NULL)
        return 0;
    sg_redis_text_words(text, "CLIENT", "CACHING", "YES", NULL);
    sg_redis_text_command(text, 2);
    sg_redis_text_arg_str(text, "EXISTS");
    sg_redis_text_arg(text, request->watch->text, request->watch->length);
    return 2;
}

/* Whether the reply says that something was changed. Only for requests that replicas confirm. */
static bool redis_request_has_written(const sg_redis_request *request)
{
    const redisReply *reply = request->reply;
    if (request->command != NULL)
        return reply->type == REDIS_REPLY_STATUS ||
               (reply->type == REDIS_REPLY_INTEGER && reply->integer != 0);
    if (request->script == SG_REDIS_SCRIPT_EXTEND)
        return reply->type == REDIS_REPLY_INTEGER && reply->integer > SG_REDIS_EXPIRED;
    return reply->type == REDIS_REPLY_STRING;
}

static syncguard_status redis_request_round_trip(sg_redis_request *request, progress *p,
                                                 sg_redis_link *link, syncguard_error *err)
{
    sg_redis_text text;
    bool watch = request->watch != NULL && !p->asking;
    sg_redis_text_init(&text);
    size_t before = redis_request_add_preamble(request, p, &text);
    redis_request_append(request, p->by_sha, &text);
    p->trip.text = &text;
    redisReply *replies[3];
    p->trip.replies = replies;
    p->trip.count = before + 1;
    p->trip.watch = watch;
    p->trip.spin = watch || request->spin;
    syncguard_status status = sg_redis_link_round_trip(link, &p->trip, request->limits, err);
    if (p->trip.sent && request->first_sent_ns == 0)
        request->first_sent_ns = p->trip.sent_ns;
    if (status == SYNCGUARD_OK) {
        request->armed = p->trip.armed &&
                         redis_tracking_check_replies(&request->backend->tracker, replies, before);
        sg_redis_replies_free(&request->reply, 1);
        request->reply = replies[before];
        replies[before] = NULL;
        sg_redis_replies_free(replies, p->trip.count);
    } else if (p->trip.sent) {
        request->unanswered = true;
    }
    sg_redis_text_free(&text);
    return status;
}

/* Sends the request once, and waits for the replicas if it wrote. */
static syncguard_status redis_request_send_once(sg_redis_request *request, progress *p,
                                                sg_redis_link *link, syncguard_error *err)
{
    request->confirmed = false;
    syncguard_status status = redis_request_round_trip(request, p, link, err);
    if (status != SYNCGUARD_OK || !request->confirm || !redis_request_has_written(request))
        return status;
    status = sg_redis_confirm(request->backend, link, p->trip.serial, request->limits,
                              &request->confirmed, err);
    if (status != SYNCGUARD_OK)
        request->unanswered = true;
    return status;
}

/* Sends the request to the node that the hash slot moves to. A WAIT would hold up other requests,
 * so it gets a link of its own. */
static syncguard_status redis_request_send_asking(sg_redis_request *request, progress *p,
                                                  syncguard_error *err)
{
    sg_redis_backend *backend = request->backend;
    sg_redis_link own, *link = &backend->ask;
    if (request->confirm) {
        syncguard_status status =
            sg_redis_link_init(&own, &backend->dialer, &backend->topology, NULL, err);
        if (status != SYNCGUARD_OK)
            return status;
        link = &own;
    }
    sg_redis_link_aim(link, p->ask_host, p->ask_port);
    syncguard_status status = redis_request_send_once(request, p, link, err);
    if (link == &own)
        sg_redis_link_fini(&own, false);
    return status;
}

/* ---- sending again ---- */

/* Pauses until the server may be able to answer; fails with the server's own error if there is no
 * time. */
static syncguard_status redis_request_pause(const sg_redis_request *request, progress *p,
                                            syncguard_error *err)
{
    syncguard_status status = sg_redis_pause(p->pauses++, request->limits, err);
    if (status == SYNCGUARD_E_NETWORK_TIMEOUT)
        status = sg_redis_fail_reply(err, request->reply);
    return status;
}

/*
 * MOVED, ASK and TRYAGAIN. OK if the request must be sent again, or the hash slot is split; ABSENT
 * for other errors.
 */
static syncguard_status redis_request_follow_redirect(sg_redis_request *request, progress *p,
                                                      const char *word, syncguard_error *err)
{
    char host[256];
    int port = 0;
    bool was_asking = p->asking;
    p->asking = false;
    if (strcmp(word, "TRYAGAIN") != 0 &&
        !sg_redis_topology_redirection(request->reply, p->trip.peer, host, &port))
        return SYNCGUARD_ABSENT;
    if (strcmp(word, "MOVED") == 0) {
        if (p->redirects++ >= MAX_REDIRECTS)
            return SYNCGUARD_ABSENT;
        sg_redis_topology_moved(&request->backend->topology, host, port);
        /* Nodes may redirect to each other: after a few redirections there are pauses. */
        return p->redirects > 3 ? redis_request_pause(request, p, err) : SYNCGUARD_OK;
    }
    if (!request->one_name) {
        request->hash_slot = SG_REDIS_HASH_SLOT_SPLIT;
        return SYNCGUARD_OK;
    }
    if (was_asking || strcmp(word, "TRYAGAIN") == 0)
        return redis_request_pause(request, p, err);
    memcpy(p->ask_host, host, sizeof host);
    p->ask_port = port;
    p->asking = true;
    return SYNCGUARD_OK;
}

/* Interprets an error reply. OK if the request must be sent again, or the hash slot is split; else
 * the failure. */
static syncguard_status redis_request_interpret_error(sg_redis_request *request, progress *p,
                                                      syncguard_error *err)
{
    sg_redis_backend *backend = request->backend;
    char word[SG_REDIS_WORD_SIZE];
    sg_redis_reply_word(request->reply, word);
    if (strcmp(word, "NOSCRIPT") == 0 && p->by_sha) {
        p->by_sha = false;
        return SYNCGUARD_OK;
    }
    if (backend->config.mode == SYNCGUARD_REDIS_CLUSTER) {
        syncguard_status status = redis_request_follow_redirect(request, p, word, err);
        if (status != SYNCGUARD_ABSENT)
            return status;
    }
    if (strcmp(word, "READONLY") == 0) {
        sg_redis_topology_forget(&backend->topology, p->trip.generation);
        if (backend->config.mode == SYNCGUARD_REDIS_SENTINEL && p->refusals++ < 1)
            return SYNCGUARD_OK;
    }
    return sg_redis_fail_reply(err, request->reply);
}

/* Reading scripts answer with an array that begins with the time, others with a number or text. */
static bool redis_request_reply_is_valid(const sg_redis_request *request)
{
    const redisReply *reply = request->reply;
    if (request->command != NULL)
        return true;
    if (request->script == SG_REDIS_SCRIPT_READ || request->script == SG_REDIS_SCRIPT_FIND)
        return reply->type == REDIS_REPLY_ARRAY && reply->elements > 0 &&
               reply->element[0]->type == REDIS_REPLY_INTEGER;
    return reply->type == REDIS_REPLY_INTEGER || reply->type == REDIS_REPLY_STRING;
}

/* The script ran on a node that has only some of the names: the hash slot moves. */
static bool redis_request_hash_slot_is_split(const sg_redis_request *request)
{
    const redisReply *answer = request->reply;
    if (request->backend->config.mode != SYNCGUARD_REDIS_CLUSTER || request->one_name)
        return false;
    if (request->script == SG_REDIS_SCRIPT_FIND)
        answer = answer->elements > 1 ? answer->element[1] : answer->element[0];
    return answer->type == REDIS_REPLY_INTEGER && answer->integer == SG_REDIS_ELSEWHERE;
}

syncguard_status sg_redis_request_run(sg_redis_request *request, syncguard_error *err)
{
    sg_redis_backend *backend = request->backend;
    progress p;
    memset(&p, 0, offsetof(progress, trip));
    p.trip.generation = p.trip.only = 0;
    p.by_sha = true;
    request->hash_slot = SG_REDIS_HASH_SLOT_STABLE;
    for (;;) {
        sg_redis_link *link =
            request->link != NULL ? request->link : redis_request_choose_link(backend);
        syncguard_status status = p.asking ? redis_request_send_asking(request, &p, err)
                                           : redis_request_send_once(request, &p, link, err);
        if (status == SYNCGUARD_E_SERVICE_UNAVAILABLE && p.trip.sent && p.breaks++ < MAX_BREAKS) {
            request->sent_again = true;
            if (p.breaks > QUICK_BREAKS &&
                sg_redis_pause(p.breaks, request->limits, NULL) != SYNCGUARD_OK)
                return status;
            continue;
        }
        if (status != SYNCGUARD_OK)
            return status;
        if (request->reply->type != REDIS_REPLY_ERROR) {
            if (!redis_request_reply_is_valid(request))
                return sg_redis_fail_reply(err, request->reply);
            if (redis_request_hash_slot_is_split(request))
                request->hash_slot = SG_REDIS_HASH_SLOT_SPLIT;
            else if (p.asking)
                request->hash_slot = SG_REDIS_HASH_SLOT_IMPORTING;
            redis_request_refresh_topology(backend, request->limits);
            return SYNCGUARD_OK;
        }
        status = redis_request_interpret_error(request, &p, err);
        if (status != SYNCGUARD_OK || request->hash_slot == SG_REDIS_HASH_SLOT_SPLIT)
            return status;
    }
}

/* ---- commands and batches ---- */

/* MOVED or READONLY in any of the replies: corrects the topology. All commands must be sent
 * again. */
static bool redis_commands_follow_redirect(sg_redis_backend *backend,
                                           const sg_redis_round_trip *trip, int *refusals)
{
    char host[256];
    int port = 0;
    if (backend->config.mode == SYNCGUARD_REDIS_SINGLE)
        return false;
    for (size_t i = 0; i < trip->count; i++) {
        if (sg_redis_reply_is(trip->replies[i], "READONLY")) {
            sg_redis_topology_forget(&backend->topology, trip->generation);
            return (*refusals)++ < 1;
        }
        if (backend->config.mode == SYNCGUARD_REDIS_CLUSTER &&
            sg_redis_reply_is(trip->replies[i], "MOVED") &&
            sg_redis_topology_redirection(trip->replies[i], trip->peer, host, &port)) {
            sg_redis_topology_moved(&backend->topology, host, port);
            return true;
        }
    }
    return false;
}

syncguard_status sg_redis_commands_send(sg_redis_backend *backend, sg_redis_commands *commands,
                                        const syncguard_limits *limits, syncguard_error *err)
{
    sg_redis_round_trip trip = {
        .text = commands->text, .replies = commands->replies, .count = commands->count};
    int refusals = 0;
    for (int round = 0;; round++) {
        sg_redis_link *link =
            commands->link != NULL ? commands->link : redis_request_choose_link(backend);
        syncguard_status status = sg_redis_link_round_trip(link, &trip, limits, err);
        commands->serial = trip.serial;
        if (status != SYNCGUARD_OK && trip.sent)
            commands->sent_before = true;
        if (round >= MAX_BREAKS)
            return status;
        if (status == SYNCGUARD_E_SERVICE_UNAVAILABLE && trip.sent) {
            if (round > QUICK_BREAKS && sg_redis_pause(round, limits, NULL) != SYNCGUARD_OK)
                return status;
            continue;
        }
        if (status != SYNCGUARD_OK)
            return status;
        if (!redis_commands_follow_redirect(backend, &trip, &refusals)) {
            redis_request_refresh_topology(backend, limits);
            return SYNCGUARD_OK;
        }
        commands->sent_before = true; /* the others may have been applied */
        sg_redis_replies_free(trip.replies, trip.count);
    }
}

syncguard_status sg_redis_commands_run(sg_redis_backend *backend, sg_redis_link *link,
                                       const sg_redis_text *text, redisReply **replies,
                                       size_t count, const syncguard_limits *limits,
                                       syncguard_error *err)
{
    sg_redis_commands commands = {.link = link, .text = text, .replies = replies, .count = count};
    return sg_redis_commands_send(backend, &commands, limits, err);
}

static bool redis_script_is_forgotten(redisReply *const *replies, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        if (sg_redis_reply_is(replies[i], "NOSCRIPT"))
            return true;
    }
    return false;
}

static syncguard_status redis_script_load(sg_redis_backend *backend, sg_redis_script_id script,
                                          const syncguard_limits *limits, syncguard_error *err)
{
    sg_redis_text text;
    redisReply *reply = NULL;
    sg_redis_text_init(&text);
    sg_redis_text_words(&text, "SCRIPT", "LOAD", sg_redis_scripts[script].text, NULL);
    syncguard_status status = sg_redis_commands_run(backend, NULL, &text, &reply, 1, limits, err);
    if (status == SYNCGUARD_OK && reply->type == REDIS_REPLY_ERROR)
        status = sg_redis_fail_reply(err, reply);
    sg_redis_replies_free(&reply, 1);
    sg_redis_text_free(&text);
    return status;
}

syncguard_status sg_redis_batch_run(sg_redis_backend *backend, sg_redis_script_id script,
                                    sg_redis_commands *batch, const syncguard_limits *limits,
                                    syncguard_error *err)
{
    syncguard_status status = sg_redis_commands_send(backend, batch, limits, err);
    if (status != SYNCGUARD_OK || !redis_script_is_forgotten(batch->replies, batch->count))
        return status;
    sg_redis_replies_free(batch->replies, batch->count);
    status = redis_script_load(backend, script, limits, err);
    if (status == SYNCGUARD_OK)
        status = sg_redis_commands_send(backend, batch, limits, err);
    return status;
}

void sg_redis_tally_add(sg_redis_tally *t, const redisReply *reply, syncguard_status status)
{
    if (sg_redis_reply_is(reply, "ASK") || sg_redis_reply_is(reply, "TRYAGAIN") ||
        (reply->type == REDIS_REPLY_INTEGER && reply->integer == SG_REDIS_ELSEWHERE))
        t->moving = true;
    if (status >= SYNCGUARD_OK)
        t->decided++;
    else if (t->first_failure == SYNCGUARD_OK)
        t->first_failure = status;
}

syncguard_status sg_redis_tally_outcome(const sg_redis_tally *t, syncguard_status status)
{
    if (t->decided > 0 || t->moving)
        return SYNCGUARD_OK;
    return status != SYNCGUARD_OK ? status : t->first_failure;
}
