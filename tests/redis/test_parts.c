/* Parts of the Redis backend that need no server: stored values, error words, redirections. */
#include "support.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "backends/redis/connection.h"
#include "backends/redis/errors.h"
#include "backends/redis/record.h"
#include "backends/redis/text.h"
#include "backends/redis/topology.h"

static bool parts_record_is_whole(const char *text, syncguard_record *record)
{
    return sg_redis_record_read(text, strlen(text), record) == SG_REDIS_WHOLE;
}

#define BODY                                                                                       \
    "\"lockId\":\"AbCdEfGhIjKlMnOpQrStUv\",\"acquiredAtMs\":5,\"expiresAtMs\":10,"                 \
    "\"fence\":\"000000000000001\""

static void values_are_read(void **state)
{
    (void)state;
    syncguard_record record;
    assert_true(parts_record_is_whole("{" BODY ",\"key\":\"k\"}", &record));
    assert_true(record.expires_at_ms == 10 && record.acquired_at_ms == 5);
    assert_true(parts_record_is_whole(
        "\t{ " BODY ", \"key\" : \"\\u00e9\\ud83d\\ude00\\n\\/\" }\r\n", &record));
    assert_string_equal(record.key, "\xC3\xA9\xF0\x9F\x98\x80\n/");
    assert_true(parts_record_is_whole(
        "{" BODY ",\"key\":\"k\",\"owner\":7,\"a very long name of a field\":{\"x\":[1,"
        "true,null,\"}\"]}}",
        &record));
    assert_string_equal(record.owner, "");
    assert_true(
        parts_record_is_whole("{" BODY ",\"key\":\"k\",\"expiresAtMs\":1.7630000005e12}", &record));
    assert_true(record.expires_at_ms == INT64_C(1763000000500));
}

static void numbers_must_be_whole(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int64_t value;
    } cases[] = {
        {"0", 0},
        {"-0", 0},
        {"0.0", 0},
        {"0e9999999999", 0},
        {"1763000000500.0", INT64_C(1763000000500)},
        {"1.7630000005e12", INT64_C(1763000000500)},
        {"1.7630000005E+12", INT64_C(1763000000500)},
        {"17630000005000e-1", INT64_C(1763000000500)},
        {"0.0017630000005e15", INT64_C(1763000000500)},
        {"-1", -1},
        {"-1.5e1", -15},
        {"10e1", 100},
        {"0001", 1}, /* as the server's own decoder reads it */
        {"9007199254740991", INT64_C(9007199254740991)},
        {"9007199254740991.0", INT64_C(9007199254740991)},
        {"-9007199254740991", -INT64_C(9007199254740991)},
        /* A fraction is rounded up, but after the rounding to a double. */
        {"1763000000500.75", INT64_C(1763000000501)},
        {"1763000000500.7512", INT64_C(1763000000501)},
        {"1763000000500.00000001", INT64_C(1763000000500)},
        {"1763000000500.99999999", INT64_C(1763000000501)},
        {"9007199254740990.25", INT64_C(9007199254740990)},
        {"0.5", 1},
        {"5e-1", 1},
        {"-0.5", 0},
        {"-1.5", -1},
        {"1e-400", 0},
        {"12345678901234567890123456789012345678901e-30", INT64_C(12345678902)},
        {"0.12345678901234567890123456789012345678901234567890", 1},
    };
    static const char *const bad[] = {
        "9007199254740992",
        "9007199254740991.5",
        "-9007199254740992",
        "1e16",
        "1e400",
        "1e99999999999999999999",
        "0.001e1000000000",
        "1e",
        "1e+",
        "1,5",
        "1.",
        ".5",
        "+1",
        "-",
        "--1",
        "1.2.3",
        "0x10",
        "nan",
        "inf",
    };
    char text[400];
    syncguard_record record;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        snprintf(text, sizeof text, "{" BODY ",\"key\":\"k\",\"expiresAtMs\": %s }", cases[i].text);
        if (!parts_record_is_whole(text, &record) || record.expires_at_ms != cases[i].value)
            fail_msg("%s is read as %lld", cases[i].text, (long long)record.expires_at_ms);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        snprintf(text, sizeof text, "{" BODY ",\"key\":\"k\",\"expiresAtMs\": %s }", bad[i]);
        if (parts_record_is_whole(text, &record))
            fail_msg("read: %s", text);
    }
}

static void rubbish_is_not_read(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "",
        " ",
        "{",
        "}",
        "null",
        "{}",
        "{" BODY "}",
        "{" BODY ",\"key\":\"k\"",
        "{" BODY ",\"key\":7}",
        "{" BODY ",\"key\":\"\"}",
        "{" BODY ",\"key\":\"k\"}x",
        "{" BODY ",\"key\":\"k\",}",
        "{" BODY ",\"key\":\"k\",\"expiresAtMs\":1e300}",
        "{" BODY ",\"key\":\"\\ud800\"}",
        "{" BODY ",\"key\":\"\\u0000\"}",
        "{" BODY ",\"key\":\"a\nb\"}",
        "{" BODY ",\"key\":\"k\",\"fence\":\"1\"}",
        "{" BODY ",\"key\":\"k\",\"lockId\":\"too long an id for us\"",
        "{" BODY ",\"key\":\"k\",\"x\":[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]]]"
        "]]]]]]]]]]]]]]]]]]]]}",
    };
    syncguard_record record;
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        if (parts_record_is_whole(texts[i], &record))
            fail_msg("read: %s", texts[i]);
    }
    /* No prefix of a value reads past its end or is taken for a value. */
    const char *whole = "{" BODY ",\"key\":\"\\u00e9\",\"x\":{\"y\":[1,2]}}";
    for (size_t n = 0; n < strlen(whole); n++) {
        char *copy = malloc(n > 0 ? n : 1);
        memcpy(copy, whole, n);
        assert_int_equal(sg_redis_record_read(copy, n, &record), SG_REDIS_UNREADABLE);
        free(copy);
    }
}

/* The expiry is enough to know whether a lock is live; any other field that cannot be read is left
 * empty. */
static void damaged_fields_are_left_empty(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        sg_redis_legibility found;
        const char *key, *fence, *lock_id;
    } cases[] = {
        {"{" BODY "}", SG_REDIS_DAMAGED, "", "000000000000001", "AbCdEfGhIjKlMnOpQrStUv"},
        {"{" BODY ",\"key\":7}", SG_REDIS_DAMAGED, "", "000000000000001", "AbCdEfGhIjKlMnOpQrStUv"},
        {"{" BODY ",\"key\":\"k\",\"fence\":\"0000000000000001\"}", SG_REDIS_DAMAGED, "k", "",
         "AbCdEfGhIjKlMnOpQrStUv"},
        {"{" BODY ",\"key\":\"k\",\"fence\":\"-00000000000001\"}", SG_REDIS_DAMAGED, "k", "",
         "AbCdEfGhIjKlMnOpQrStUv"},
        {"{" BODY ",\"key\":\"k\",\"fence\":[{}]}", SG_REDIS_DAMAGED, "k", "",
         "AbCdEfGhIjKlMnOpQrStUv"},
        {"{" BODY ",\"key\":\"k\",\"lockId\":null}", SG_REDIS_DAMAGED, "k", "000000000000001", ""},
        {"{" BODY ",\"key\":\"k\",\"acquiredAtMs\":\"x\",\"owner\":7}", SG_REDIS_WHOLE, "k",
         "000000000000001", "AbCdEfGhIjKlMnOpQrStUv"},
        {"{" BODY ",\"key\":\"e\xCC\x81\"}", SG_REDIS_WHOLE, "\xC3\xA9", "000000000000001",
         "AbCdEfGhIjKlMnOpQrStUv"},
        {"{\"expiresAtMs\":10}", SG_REDIS_DAMAGED, "", "", ""},
        {"{" BODY ",\"key\":\"k\",\"expiresAtMs\":\"10\"}", SG_REDIS_UNREADABLE, "k",
         "000000000000001", "AbCdEfGhIjKlMnOpQrStUv"},
    };
    syncguard_record record;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *text = cases[i].text;
        if (sg_redis_record_read(text, strlen(text), &record) != cases[i].found)
            fail_msg("%s", text);
        assert_string_equal(record.key, cases[i].key);
        assert_string_equal(record.fence, cases[i].fence);
        assert_string_equal(record.lock_id, cases[i].lock_id);
    }
}

static void quoting_is_undone_by_reading(void **state)
{
    (void)state;
    char key[300];
    size_t length = 0;
    for (int c = 1; c < 128; c++)
        key[length++] = (char)c;
    sg_redis_text out;
    sg_redis_text_init(&out);
    sg_redis_record_quote(&out, key, length);
    char text[2000];
    snprintf(text, sizeof text, "{" BODY ",\"key\":%.*s}", (int)out.length, out.data);
    sg_redis_text_free(&out);
    syncguard_record record;
    assert_true(parts_record_is_whole(text, &record));
    assert_int_equal(strlen(record.key), length);
    assert_memory_equal(record.key, key, length);
}

static redisReply error_reply(const char *text)
{
    redisReply reply;
    memset(&reply, 0, sizeof reply);
    reply.type = REDIS_REPLY_ERROR;
    reply.str = (char *)(uintptr_t)text;
    reply.len = strlen(text);
    return reply;
}

static void errors_are_told_by_their_word(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        syncguard_status status;
        const char *word;
    } cases[] = {
        {"NOAUTH Authentication required.", SYNCGUARD_E_AUTH_FAILED, "NOAUTH"},
        {"WRONGPASS x", SYNCGUARD_E_AUTH_FAILED, "WRONGPASS"},
        {"NOPERM x", SYNCGUARD_E_AUTH_FAILED, "NOPERM"},
        {"LOADING x", SYNCGUARD_E_SERVICE_UNAVAILABLE, "LOADING"},
        {"MASTERDOWN x", SYNCGUARD_E_SERVICE_UNAVAILABLE, "MASTERDOWN"},
        {"-READONLY x", SYNCGUARD_E_SERVICE_UNAVAILABLE, "READONLY"},
        {"CLUSTERDOWN x", SYNCGUARD_E_SERVICE_UNAVAILABLE, "CLUSTERDOWN"},
        {"TRYAGAIN x", SYNCGUARD_E_SERVICE_UNAVAILABLE, "TRYAGAIN"},
        {"BUSY x", SYNCGUARD_E_SERVICE_UNAVAILABLE, "BUSY"},
        {"MISCONF x", SYNCGUARD_E_SERVICE_UNAVAILABLE, "MISCONF"},
        {"OOM x", SYNCGUARD_E_RATE_LIMITED, "OOM"},
        {"WRONGTYPE x", SYNCGUARD_E_INTERNAL, "WRONGTYPE"},
        {"ERR something NOAUTH OOM", SYNCGUARD_E_INTERNAL, "ERR"},
        /* Inside a script: 6.2, 7.0 and 7.2. */
        {"ERR Error running script (call to f_0): @user_script:9: The user executing the script "
         "can't run this command or subcommand",
         SYNCGUARD_E_AUTH_FAILED, "NOPERM"},
        {"ERR The user executing the script can't access at least one of the keys",
         SYNCGUARD_E_AUTH_FAILED, "NOPERM"},
        {"NOPERM ACL failure in script: x", SYNCGUARD_E_AUTH_FAILED, "NOPERM"},
        {"lower case", SYNCGUARD_E_INTERNAL, ""},
        {"", SYNCGUARD_E_INTERNAL, ""},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        redisReply reply = error_reply(cases[i].text);
        assert_int_equal(sg_redis_fail_reply(&err, &reply), cases[i].status);
        assert_string_equal(err.native, cases[i].word);
    }
}

static void redirections_are_read(void **state)
{
    (void)state;
    char host[256];
    int port = 0;
    redisReply reply = error_reply("MOVED 3999 10.0.0.1:6381");
    assert_true(sg_redis_topology_redirection(&reply, "p:1", host, &port));
    assert_string_equal(host, "10.0.0.1");
    assert_int_equal(port, 6381);
    reply = error_reply("ASK 1 2001:db8::1:7000");
    assert_true(sg_redis_topology_redirection(&reply, "p:1", host, &port));
    assert_string_equal(host, "2001:db8::1");
    reply = error_reply("MOVED 3999 :6381");
    assert_true(sg_redis_topology_redirection(&reply, "peer.example:1", host, &port));
    assert_string_equal(host, "peer.example");
    assert_true(sg_redis_topology_port("65535", &port));
    assert_int_equal(port, 65535);
    static const char *const ports[] = {"", "0", "-1", "65536", "99999999999999999999", "6379x"};
    for (size_t i = 0; i < sizeof ports / sizeof ports[0]; i++)
        assert_false(sg_redis_topology_port(ports[i], &port));
    static const char *const bad[] = {"MOVED",         "MOVED 1",     "MOVED 1 host",
                                      "MOVED 1 host:", "MOVED 1 h:0", "MOVED 1 h:99999",
                                      "ERR x y:1"};
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        reply = error_reply(bad[i]);
        assert_false(sg_redis_topology_redirection(&reply, "p:1", host, &port));
    }
}

static void commands_are_encoded(void **state)
{
    (void)state;
    sg_redis_text text;
    sg_redis_text_init(&text);
    sg_redis_text_command(&text, 3);
    sg_redis_text_arg_str(&text, "SET");
    sg_redis_text_arg(&text, "a\0b", 3);
    sg_redis_text_arg_int(&text, INT64_MIN);
    const char expected[] = "*3\r\n$3\r\nSET\r\n$3\r\na\0b\r\n$20\r\n-9223372036854775808\r\n";
    assert_int_equal(text.length, sizeof expected - 1);
    assert_memory_equal(text.data, expected, text.length);
    for (int i = 0; i < 10000; i++)
        sg_redis_text_arg_str(&text, "growing");
    assert_false(text.failed);
    sg_redis_text_free(&text);
}

/* ---- other servers ---- */

static sg_redis_topology parts_topology_learn(const char *text,
                                              void (*read)(sg_redis_topology *, const redisReply *))
{
    static sg_redis_topology topology;
    redisReader *reader = redisReaderCreate();
    memset(&topology, 0, sizeof topology);
    pthread_mutex_init(&topology.mutex, NULL);
    topology.node_count = 1; /* what was known before */
    snprintf(topology.nodes[0].host, sizeof topology.nodes[0].host, "before");
    redisReaderFeed(reader, text, strlen(text));
    void *reply = NULL;
    assert_int_equal(redisReaderGetReply(reader, &reply), REDIS_OK);
    assert_non_null(reply);
    read(&topology, reply);
    freeReplyObject(reply);
    redisReaderFree(reader);
    pthread_mutex_destroy(&topology.mutex);
    return topology;
}

static void parts_hash_slots_read(sg_redis_topology *topology, const redisReply *reply)
{
    sg_redis_topology_read_hash_slots(topology, reply, "seed.example:7000");
}

#define NODE(host, port) "*3\r\n" host ":" port "\r\n$1\r\nx\r\n"
#define NOBODY "$-1\r\n"

static void nodes_of_a_cluster_are_learnt(void **state)
{
    (void)state;
    sg_redis_topology topology = parts_topology_learn(
        "*2\r\n"
        "*4\r\n:0\r\n:99\r\n" NODE("$5\r\na.net\r\n", "7001")
            NODE("$4\r\n10.1\r\n", "7002") "*3\r\n:100\r\n:199\r\n" NODE("$5\r\na.net\r\n", "7001"),
        parts_hash_slots_read);
    assert_int_equal(topology.node_count, 2);
    assert_string_equal(topology.nodes[0].host, "a.net");
    assert_int_equal(topology.nodes[0].port, 7001);
    assert_string_equal(topology.nodes[1].host, "10.1");
    /* A host that is not named is the server that was asked, or the address next to it. */
    topology = parts_topology_learn(
        "*1\r\n*6\r\n:0\r\n:99\r\n" NODE(NOBODY, "7001") NODE("$0\r\n\r\n", "7002")
            NODE("$1\r\n?\r\n", "7003") "*4\r\n$1\r\n?\r\n:7004\r\n$1\r\nx\r\n"
                                        "*2\r\n$2\r\nip\r\n$4\r\n10.9\r\n",
        parts_hash_slots_read);
    assert_int_equal(topology.node_count, 4);
    for (int i = 0; i < 3; i++)
        assert_string_equal(topology.nodes[i].host, "seed.example");
    assert_int_equal(topology.nodes[2].port, 7003);
    assert_string_equal(topology.nodes[3].host, "10.9");
}

/* A malformed reply leaves the list as it was. */
static void nonsense_about_nodes_is_ignored(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "-NOPERM no\r\n",
        "*0\r\n",
        "+OK\r\n",
        "*1\r\n:1\r\n",
        "*1\r\n*3\r\n:0\r\n:99\r\n:7\r\n",
        "*1\r\n*3\r\n:0\r\n:99\r\n*1\r\n$1\r\na\r\n",
        "*1\r\n*3\r\n:0\r\n:99\r\n" NODE("$1\r\na\r\n", "0"),
        "*1\r\n*3\r\n:0\r\n:99\r\n" NODE("$1\r\na\r\n", "65536"),
    };
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        sg_redis_topology topology = parts_topology_learn(texts[i], parts_hash_slots_read);
        assert_int_equal(topology.node_count, 1);
        assert_string_equal(topology.nodes[0].host, "before");
        topology = parts_topology_learn(texts[i], sg_redis_topology_read_sentinels);
        assert_int_equal(topology.node_count, 1);
    }
}

static void the_list_of_nodes_is_bounded(void **state)
{
    (void)state;
    static char text[65536];
    int length = snprintf(text, sizeof text, "*1\r\n*1002\r\n:0\r\n:99\r\n");
    for (int i = 0; i < 1000; i++)
        length += snprintf(text + length, sizeof text - (size_t)length,
                           "*3\r\n$1\r\na\r\n:%d\r\n$1\r\nx\r\n", 7000 + i);
    assert_int_equal(parts_topology_learn(text, parts_hash_slots_read).node_count,
                     SG_REDIS_MAX_NODES);
}

static void other_sentinels_are_learnt(void **state)
{
    (void)state;
    sg_redis_topology topology =
        parts_topology_learn("*2\r\n"
                             "*6\r\n$2\r\nip\r\n$4\r\n10.1\r\n$4\r\nport\r\n$5\r\n26379\r\n"
                             "$5\r\nrunid\r\n$3\r\nabc\r\n"
                             "*4\r\n$4\r\nport\r\n$5\r\n26380\r\n$2\r\nip\r\n$1\r\nx\r\n",
                             sg_redis_topology_read_sentinels);
    assert_int_equal(topology.node_count, 1); /* the second could not be recognized */
    assert_string_equal(topology.nodes[0].host, "10.1");
    assert_string_equal(topology.nodes[0].id, "abc");
    assert_int_equal(topology.nodes[0].port, 26379);
}

/* ---- replies without end ---- */

#define FLOOD_ELEMENT 100000
#define FLOOD_MOST (64 << 20)

typedef struct flood {
    int fd;
    size_t sent;
} flood;

/* An array that announces few elements, each of them short enough. */
static void *send_flood(void *argument)
{
    flood *f = argument;
    static char element[FLOOD_ELEMENT + 20];
    int head = snprintf(element, sizeof element, "$%d\r\n", FLOOD_ELEMENT);
    memset(element + head, 'x', FLOOD_ELEMENT);
    size_t length = (size_t)head + FLOOD_ELEMENT;
    element[length++] = '\r';
    element[length++] = '\n';
    bool open = send(f->fd, "*60000\r\n", 8, MSG_NOSIGNAL) == 8;
    for (size_t at = 0; open && f->sent < FLOOD_MOST; at = at < length ? at : 0) {
        ssize_t n = send(f->fd, element + at, length - at, MSG_NOSIGNAL);
        open = n > 0;
        at += open ? (size_t)n : 0;
        f->sent += open ? (size_t)n : 0;
    }
    shutdown(f->fd, SHUT_WR);
    return NULL;
}

static syncguard_status parts_reply_receive(sg_redis_connection *conn, int64_t within_ms)
{
    sg_redis_text nothing;
    redisReply *reply = NULL;
    syncguard_limits limits = {syncguard_clock_ns() + within_ms * SYNCGUARD_NS_PER_MS, NULL};
    sg_redis_text_init(&nothing);
    syncguard_status status = sg_redis_connection_call(conn, &nothing, &reply, 1, &limits, &err);
    freeReplyObject(reply);
    return status;
}

static void replies_are_bounded(void **state)
{
    (void)state;
    sg_redis_connection conn = {.fd = -1};
    int fds[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    assert_int_equal(fcntl(fds[0], F_SETFL, O_NONBLOCK), 0);
    conn.fd = fds[0];
    flood f = {-1, 0};
    f.fd = fds[1];
    assert_true(sg_redis_connection_make_reader(&conn));
    pthread_t thread = test_start_thread(send_flood, &f);
    assert_status(SYNCGUARD_E_SERVICE_UNAVAILABLE, parts_reply_receive(&conn, 30000));
    close(fds[0]);
    pthread_join(thread, NULL);
    assert_true(f.sent < FLOOD_MOST / 2);
    close(fds[1]);
    redisReaderFree(conn.reader);
}

/* The limits are checked even if there are always bytes to read. */
static void limits_count_while_bytes_come(void **state)
{
    (void)state;
    static const char part[60000] = "+";
    sg_redis_connection conn = {.fd = -1};
    int fds[2];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
    assert_int_equal(fcntl(fds[0], F_SETFL, O_NONBLOCK), 0);
    conn.fd = fds[0];
    assert_true(sg_redis_connection_make_reader(&conn));
    assert_int_equal(send(fds[1], part, sizeof part, MSG_NOSIGNAL), sizeof part);
    assert_status(SYNCGUARD_E_NETWORK_TIMEOUT, parts_reply_receive(&conn, 0));
    int left = 0;
    assert_int_equal(ioctl(fds[0], FIONREAD, &left), 0);
    assert_int_equal(left, sizeof part);
    close(fds[0]);
    close(fds[1]);
    redisReaderFree(conn.reader);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_are_read),
        cmocka_unit_test(numbers_must_be_whole),
        cmocka_unit_test(rubbish_is_not_read),
        cmocka_unit_test(damaged_fields_are_left_empty),
        cmocka_unit_test(quoting_is_undone_by_reading),
        cmocka_unit_test(errors_are_told_by_their_word),
        cmocka_unit_test(redirections_are_read),
        cmocka_unit_test(commands_are_encoded),
        cmocka_unit_test(nodes_of_a_cluster_are_learnt),
        cmocka_unit_test(nonsense_about_nodes_is_ignored),
        cmocka_unit_test(the_list_of_nodes_is_bounded),
        cmocka_unit_test(other_sentinels_are_learnt),
        cmocka_unit_test(replies_are_bounded),
        cmocka_unit_test(limits_count_while_bytes_come),
    };
    return cmocka_run_group_tests_name("redis parts", tests, NULL, NULL);
}
