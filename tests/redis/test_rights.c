/*
 * The rights that docs/backends/redis.md asks for (tests/servers reads them there): with all of
 * them the server refuses nothing that we do, and without any single one it refuses something. The
 * server's own log of refusals shows this. The doctor finds the one that is missing.
 */
#include "support.h"

#define USER "locker"
#define PASSWORD "pw-marker-rights"
#define MOST 64

static char rights[MOST][64];
static int count;
static int servers;
static bool cluster;

static void redis_rights_read(void)
{
    char text[2048];
    char *rest = text;
    snprintf(text, sizeof text, "%s", getenv("REDIS_TEST_RIGHTS"));
    for (char *word; (word = strtok_r(rest, " ", &rest)) != NULL; count++) {
        assert_true(count < MOST);
        snprintf(rights[count], sizeof rights[0], "%s", word);
    }
    assert_true(count > 20);
    servers = (int)strtol(getenv("REDIS_TEST_SERVERS"), NULL, 10);
    cluster = strstr(redis_url, "+cluster") != NULL;
}

static void at_all(const char *command)
{
    for (int i = 0; i < servers; i++)
        freeReplyObject(raw_at(redis_port(i), command));
}

/* Grants all rights but one (-1: all), on every server. */
static void redis_rights_permit(int without)
{
    char command[4096];
    size_t length = (size_t)snprintf(command, sizeof command,
                                     "ACL SETUSER " USER " reset on >" PASSWORD " -@all");
    for (int i = 0; i < count; i++) {
        if (i != without)
            length += (size_t)snprintf(command + length, sizeof command - length, " %s", rights[i]);
    }
    for (int i = 0; i < servers; i++) {
        redisReply *reply = raw_at(redis_port(i), command);
        if (reply->type == REDIS_REPLY_ERROR)
            fail_msg("%s: %s", command, reply->str);
        freeReplyObject(reply);
    }
    at_all("ACL LOG RESET");
}

/* Counts what the servers refused; prints it if it was not expected. */
static int redis_rights_refusals_count(bool show)
{
    int sum = 0;
    for (int i = 0; i < servers; i++) {
        redisReply *log = raw_at(redis_port(i), "ACL LOG");
        assert_int_equal(log->type, REDIS_REPLY_ARRAY);
        sum += (int)log->elements;
        for (size_t e = 0; show && e < log->elements; e++)
            print_error("refused: %s %s\n", log->element[e]->element[3]->str,
                        log->element[e]->element[7]->str);
        freeReplyObject(log);
    }
    return sum;
}

/* Our hash slot, and the node that has it. */
static int redis_rights_hash_slot(int *owner)
{
    redisReply *reply = raw_at(redis_port(0), "CLUSTER KEYSLOT {syncguard}:x");
    int hash_slot = (int)reply->integer;
    freeReplyObject(reply);
    *owner = hash_slot / (16384 / 3);
    return hash_slot;
}

static syncguard_backend *open_as_user(void)
{
    char url[2048];
    const char *rest = strstr(redis_url, "://") + 3;
    const char *query = strchr(rest, '?');
    int before = query != NULL ? (int)(query - rest) : (int)strlen(rest);
    if (cluster) { /* one seed that does not have the hash slot, so that its owner must be learnt */
        int owner;
        (void)redis_rights_hash_slot(&owner);
        snprintf(url, sizeof url,
                 "redis+cluster://" USER ":" PASSWORD "@127.0.0.1:%d?timeout_ms=2000",
                 redis_port((owner + 1) % 3));
    } else
        snprintf(url, sizeof url, "%.*s" USER ":" PASSWORD "@%.*s/1%s%stimeout_ms=2000",
                 (int)(rest - redis_url), redis_url, before, rest, query != NULL ? query : "?",
                 query != NULL ? "&" : "");
    syncguard_backend *backend = NULL;
    assert_status(SYNCGUARD_OK, syncguard_open(url, NULL, &backend, &err));
    return backend;
}

static char lacking[1024]; /* what the doctor said of permissions */

static void redis_rights_finding_note(void *context, const syncguard_finding *finding)
{
    (void)context;
    if (strcmp(finding->topic, "permissions") == 0 && finding->severity != SYNCGUARD_FINE)
        snprintf(lacking + strlen(lacking), sizeof lacking - strlen(lacking), "%s ", finding->text);
}

static void *redis_rights_waiter_run(void *backend)
{
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_WAIT_MS(5000);
    syncguard_lock *lock = NULL;
    if (syncguard_lock_acquire(backend, "waited", &options, &lock, NULL) == SYNCGUARD_OK)
        syncguard_lock_dispose(lock);
    return NULL;
}

/* Begins or ends a move of the hash slot: its owner redirects requests for new keys to the next
 * node. */
static void move_hash_slot(bool begin)
{
    int from, hash_slot = redis_rights_hash_slot(&from), to = (from + 1) % 3;
    redisReply *old = raw_at(redis_port(from), "CLUSTER MYID");
    redisReply *new = raw_at(redis_port(to), "CLUSTER MYID");
    if (begin) {
        freeReplyObject(
            raw_at(redis_port(to), "CLUSTER SETSLOT %d IMPORTING %s", hash_slot, old->str));
        freeReplyObject(
            raw_at(redis_port(from), "CLUSTER SETSLOT %d MIGRATING %s", hash_slot, new->str));
    } else {
        freeReplyObject(raw_at(redis_port(to), "CLUSTER SETSLOT %d STABLE", hash_slot));
        freeReplyObject(raw_at(redis_port(from), "CLUSTER SETSLOT %d STABLE", hash_slot));
    }
    freeReplyObject(old);
    freeReplyObject(new);
}

static int failures;

static void redis_rights_note_status(syncguard_status status)
{
    if (status < 0) {
        failures++;
        assert_int_not_equal(status, SYNCGUARD_E_INTERNAL); /* also inside a script */
        print_message("    %s: %s\n", syncguard_status_name(status), err.message);
    }
}

/* Uses every right once. Failures are counted. */
static void redis_rights_use_all(void)
{
    failures = 0;
    at_all("FLUSHALL");
    at_all("SCRIPT FLUSH");
    syncguard_backend *backend = open_as_user();
    syncguard_grant grant;
    redis_rights_note_status(syncguard_acquire(backend, "k", 5000, NULL, &grant, &err));
    bool flag;
    redis_rights_note_status(syncguard_is_locked(backend, "k", NULL, &flag, &err));
    syncguard_lock_info info;
    redis_rights_note_status(syncguard_get_by_key(backend, "k", NULL, &info, &err));
    redis_rights_note_status(syncguard_list(backend, NULL, test_ignore_info, NULL, &err));
    if (failures == 0) {
        redis_rights_note_status(syncguard_get_by_id(backend, grant.lock_id, NULL, &info, &err));
        redis_rights_note_status(syncguard_extend(backend, grant.lock_id, 5000, NULL, NULL, &err));
        redis_rights_note_status(syncguard_release(backend, grant.lock_id, NULL, &err));
    }
    lacking[0] = '\0';
    redis_rights_note_status(
        syncguard_examine(backend, NULL, redis_rights_finding_note, NULL, &err));
    pthread_t waiter;
    if (failures == 0) {
        redis_rights_note_status(syncguard_acquire(backend, "waited", 5000, NULL, &grant, &err));
        waiter = test_start_thread(redis_rights_waiter_run, backend);
        test_sleep_ms(150);
        redis_rights_note_status(syncguard_release(backend, grant.lock_id, NULL, &err));
        pthread_join(waiter, NULL);
    }
    syncguard_lock_options renewed = SYNCGUARD_LOCK_OPTIONS_INIT;
    renewed.auto_extend = true;
    renewed.ttl_ms = 1000;
    syncguard_lock *locks[8] = {NULL};
    for (int i = 0; i < 8 && failures == 0; i++) {
        char key[16];
        snprintf(key, sizeof key, "renewed%d", i);
        redis_rights_note_status(syncguard_lock_acquire(backend, key, &renewed, &locks[i], &err));
    }
    if (failures == 0) {
        at_all("SCRIPT FLUSH");
        test_sleep_ms(600);
    }
    for (int i = 0; i < 8; i++)
        syncguard_lock_dispose(locks[i]);
    if (cluster && failures == 0) {
        move_hash_slot(true);
        redis_rights_note_status(syncguard_acquire(backend, "moved", 5000, NULL, &grant, &err));
        move_hash_slot(false);
    }
    syncguard_close(backend);
}

static void redis_documented_rights_are_enough(void **state)
{
    (void)state;
    redis_rights_permit(-1);
    redis_rights_use_all();
    assert_int_equal(failures, 0);
    assert_int_equal(redis_rights_refusals_count(true), 0);
    assert_string_equal(lacking, "");
}

/* Without these rights no connection is made over which the server could be asked. */
static bool is_for_connecting(const char *right)
{
    return strcmp(right, "+select") == 0 || strcmp(right, "+role") == 0;
}

static void redis_each_right_is_needed(void **state)
{
    (void)state;
    int unneeded = 0;
    for (int i = 0; i < count; i++) {
        if (strncmp(rights[i], "reset", 5) == 0 || strcmp(rights[i], "-@all") == 0)
            continue; /* no rights */
        redis_rights_permit(i);
        redis_rights_use_all();
        if (redis_rights_refusals_count(false) == 0) {
            print_error("not needed: %s\n", rights[i]);
            unneeded++;
        }
        if (!is_for_connecting(rights[i]) && strstr(lacking, rights[i]) == NULL) {
            print_error("the doctor does not find that %s is missing: %s\n", rights[i], lacking);
            unneeded++;
        }
    }
    assert_int_equal(unneeded, 0);
}

int main(int argc, char **argv)
{
    redis_begin(argc, argv);
    redis_rights_read();
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(redis_documented_rights_are_enough),
        cmocka_unit_test(redis_each_right_is_needed),
    };
    return cmocka_run_group_tests_name("redis rights", tests, NULL, NULL);
}
