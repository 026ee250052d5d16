#include "cluster.h"

int witness;

int our_hash_slot(void)
{
    redisReply *reply = raw_at(redis_port(witness), "CLUSTER KEYSLOT {syncguard}");
    int hash_slot = (int)reply->integer;
    freeReplyObject(reply);
    return hash_slot;
}

int owner_of(int hash_slot, char id[64])
{
    redisReply *reply = raw_at(redis_port(witness), "CLUSTER SLOTS");
    int owner = -1;
    for (size_t i = 0; i < reply->elements; i++) {
        redisReply *range = reply->element[i];
        if (range->element[0]->integer <= hash_slot && hash_slot <= range->element[1]->integer) {
            for (int n = 0; n < NODES; n++) {
                if (redis_port(n) == range->element[2]->element[1]->integer)
                    owner = n;
            }
            snprintf(id, 64, "%s", range->element[2]->element[2]->str);
        }
    }
    freeReplyObject(reply);
    return owner;
}

static void node_do(int node, const char *format, int hash_slot, const char *id)
{
    redisReply *reply = raw_at(redis_port(node), format, hash_slot, id);
    if (reply->type == REDIS_REPLY_ERROR)
        fail_msg("%s: %s", format, reply->str);
    freeReplyObject(reply);
}

static void node_id(int node, char id[64])
{
    redisReply *reply = raw_at(redis_port(node), "CLUSTER MYID");
    snprintf(id, 64, "%s", reply->str);
    freeReplyObject(reply);
}

void begin_move(move *m)
{
    char from_id[64];
    m->hash_slot = our_hash_slot();
    m->from = owner_of(m->hash_slot, from_id);
    m->to = (m->from + 1) % PRIMARIES;
    node_id(m->to, m->to_id);
    node_do(m->to, "CLUSTER SETSLOT %d IMPORTING %s", m->hash_slot, from_id);
    node_do(m->from, "CLUSTER SETSLOT %d MIGRATING %s", m->hash_slot, m->to_id);
}

bool move_some(const move *m, int count)
{
    redisReply *keys =
        raw_at(redis_port(m->from), "CLUSTER GETKEYSINSLOT %d %d", m->hash_slot, count);
    bool any = keys->elements > 0;
    if (any) {
        const char *argv[1024];
        size_t sizes[1024];
        char port[16];
        int argc = 0;
        snprintf(port, sizeof port, "%d", redis_port(m->to));
        const char *words[] = {"MIGRATE", "127.0.0.1", port, "", "0", "5000", "KEYS"};
        for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
            argv[argc] = words[i];
            sizes[argc++] = strlen(words[i]);
        }
        for (size_t i = 0; i < keys->elements && argc < 1024; i++) {
            argv[argc] = keys->element[i]->str;
            sizes[argc++] = (size_t)keys->element[i]->len;
        }
        raw_argv_at(redis_port(m->from), argc, argv, sizes); /* NOKEY: released meanwhile */
    }
    freeReplyObject(keys);
    return any;
}

static void move_name(const move *m, const char *name)
{
    redisReply *reply =
        raw_at(redis_port(m->from), "MIGRATE 127.0.0.1 %d %s 0 5000", redis_port(m->to), name);
    assert_int_equal(reply->type, REDIS_REPLY_STATUS);
    assert_string_equal(reply->str, "OK");
    freeReplyObject(reply);
}

void end_move(const move *m)
{
    while (move_some(m, 100))
        ;
    node_do(m->to, "CLUSTER SETSLOT %d NODE %s", m->hash_slot, m->to_id);
    node_do(m->from, "CLUSTER SETSLOT %d NODE %s", m->hash_slot, m->to_id);
    for (int n = 0; n < PRIMARIES; n++)
        node_do(n, "CLUSTER SETSLOT %d NODE %s", m->hash_slot, m->to_id);
}

void spread(const move *m, const char *key, const char *lock_id, int mask)
{
    char name[128];
    if ((mask & 1) != 0) {
        snprintf(name, sizeof name, "{syncguard}:%s", key);
        move_name(m, name);
    }
    if ((mask & 2) != 0) {
        snprintf(name, sizeof name, "{syncguard}:id:%s", lock_id);
        move_name(m, name);
    }
    if ((mask & 4) != 0) {
        snprintf(name, sizeof name, "{syncguard}:fence:{syncguard}:%s", key);
        move_name(m, name);
    }
}

void only_counters_are_left(const move *m)
{
    redisReply *keys = raw_at(redis_port(m->to), "CLUSTER GETKEYSINSLOT %d 10000", m->hash_slot);
    for (size_t i = 0; i < keys->elements; i++) {
        if (strncmp(keys->element[i]->str, "{syncguard}:fence:", 18) != 0)
            fail_msg("left behind: %s", keys->element[i]->str);
    }
    freeReplyObject(keys);
}
