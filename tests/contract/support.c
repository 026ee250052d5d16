/*
 * Shared by the tests of the contract suite: the group's handle, keys, time, threads, other
 * processes, recorded events.
 */
#include "contract.h"

#include <sys/wait.h>

contract_settings contract;
syncguard_backend *store;
syncguard_error err;

int act(int argc, char **argv);
int open_group(void **state);
int close_group(void **state);
size_t not_applicable_count(void);

static size_t inapplicable;

/* ---- handles ---- */

static syncguard_backend *contract_open_url(const syncguard_options *options,
                                            syncguard_status *status)
{
    syncguard_backend *bare = NULL;
    *status = syncguard_open(contract.url, options, &bare, &err);
    if (*status != SYNCGUARD_OK || !contract.telemetry)
        return bare;
    syncguard_telemetry_options telemetry = SYNCGUARD_TELEMETRY_OPTIONS_INIT;
    telemetry.on_event = record_event;
    telemetry.queue_length = 65536;
    syncguard_backend *decorated = NULL;
    *status = syncguard_telemetry_wrap(bare, &telemetry, &decorated, &err);
    if (*status != SYNCGUARD_OK)
        syncguard_close(bare);
    return decorated;
}

syncguard_backend *open_store(const syncguard_options *options)
{
    syncguard_status status;
    syncguard_backend *opened = contract_open_url(options, &status);
    assert_status(SYNCGUARD_OK, status);
    assert_non_null(opened);
    return opened;
}

int open_group(void **state)
{
    (void)state;
    syncguard_status status;
    store = contract_open_url(NULL, &status);
    if (status == SYNCGUARD_OK && store != NULL)
        return 0;
    print_error("cannot open the store: %s: %s\n", syncguard_status_name(status), err.message);
    return -1;
}

int close_group(void **state)
{
    (void)state;
    syncguard_close(store);
    store = NULL;
    return 0;
}

const syncguard_capabilities *able(void)
{
    return syncguard_capabilities_get(store);
}

bool store_is_shared(void)
{
    return able()->is_shared;
}

void not_applicable(const char *reason)
{
    inapplicable++;
    print_message("[   N/A    ] %s\n", reason);
}

size_t not_applicable_count(void)
{
    return inapplicable;
}

/* ---- keys ---- */

key fresh_key(const char *name)
{
    static atomic_uint count;
    key made;
    snprintf(made.text, sizeof made.text, "ct-%s-%lx-%llx-%x", name, (long)getpid(),
             (unsigned long long)test_wall_ns(), atomic_fetch_add(&count, 1));
    return made;
}

key fresh_key_of(size_t bytes)
{
    key made = fresh_key("long");
    size_t length = strlen(made.text);
    assert_true(bytes < sizeof made.text && length < bytes);
    memset(made.text + length, 'x', bytes - length);
    made.text[bytes] = '\0';
    return made;
}

/* ---- short forms ---- */

void check_figure(int64_t value, int64_t least, int64_t most, const char *text, const char *file,
                  int line)
{
    if (value >= least && value <= most)
        return;
    print_error("%s is %lld", text, (long long)value);
    if (least == INT64_MIN)
        print_error(", more than %lld\n", (long long)most);
    else if (most == INT64_MAX)
        print_error(", less than %lld\n", (long long)least);
    else
        print_error(", not from %lld to %lld\n", (long long)least, (long long)most);
    _fail(file, line);
}

/* On a busy machine a grant may arrive after the end of a short lease: it is undone, and does not
 * count. */
syncguard_grant take(const char *name, int64_t ttl_ms)
{
    syncguard_grant grant;
    memset(&grant, 0, sizeof grant);
    syncguard_status status = syncguard_acquire(store, name, ttl_ms, NULL, &grant, &err);
    bool late = false;
    for (int i = 0; i < 40 && ttl_ms < 1000; i++) {
        late = late || status == SYNCGUARD_E_NETWORK_TIMEOUT;
        if (!late || status == SYNCGUARD_OK)
            break;
        test_sleep_ms(50);
        status = syncguard_acquire(store, name, ttl_ms, NULL, &grant, &err);
    }
    assert_status(SYNCGUARD_OK, status);
    return grant;
}

void check_locked(const char *name, bool expected)
{
    bool locked = !expected;
    assert_status(SYNCGUARD_OK, syncguard_is_locked(store, name, NULL, &locked, &err));
    assert_int_equal(locked, expected);
}

void give_back(const syncguard_grant *grant)
{
    assert_status(SYNCGUARD_OK, syncguard_release(store, grant->lock_id, NULL, &err));
}

/* ---- threads ---- */

typedef struct crowd {
    pthread_barrier_t start;
    void (*run)(int index, void *context);
    void *context;
} crowd;

typedef struct member {
    crowd *crowd;
    int index;
    pthread_t thread;
} member;

static void *member_run(void *argument)
{
    member *self = argument;
    pthread_barrier_wait(&self->crowd->start);
    self->crowd->run(self->index, self->crowd->context);
    return NULL;
}

void in_threads(int count, void (*run)(int index, void *context), void *context)
{
    crowd all = {.run = run, .context = context};
    member *members = calloc((size_t)count, sizeof *members);
    assert_non_null(members);
    assert_int_equal(pthread_barrier_init(&all.start, NULL, (unsigned)count), 0);
    for (int i = 0; i < count; i++) {
        members[i].crowd = &all;
        members[i].index = i;
        members[i].thread = test_start_thread(member_run, &members[i]);
    }
    for (int i = 0; i < count; i++)
        pthread_join(members[i].thread, NULL);
    pthread_barrier_destroy(&all.start);
    free(members);
}

/* ---- other processes ---- */

/* Exit codes of the other process: answers as they are, failures from 100 on. */
static int exit_code_of(syncguard_status status)
{
    return status >= 0 ? (int)status : 100 - (int)status;
}

static syncguard_status status_of(int exit_code)
{
    return (syncguard_status)(exit_code >= 100 ? 100 - exit_code : exit_code);
}

int act(int argc, char **argv)
{
    if (argc != 3)
        return 64;
    syncguard_backend *backend = NULL;
    syncguard_status status = syncguard_open(argv[0], NULL, &backend, &err);
    if (status != SYNCGUARD_OK)
        return exit_code_of(status);
    syncguard_grant grant;
    bool locked = false;
    if (strcmp(argv[1], "release") == 0)
        status = syncguard_release(backend, argv[2], NULL, &err);
    else if (strcmp(argv[1], "extend") == 0)
        status = syncguard_extend(backend, argv[2], 30000, NULL, NULL, &err);
    else if (strcmp(argv[1], "shorten") == 0)
        status = syncguard_extend(backend, argv[2], 3000, NULL, NULL, &err);
    else if (strcmp(argv[1], "acquire") == 0)
        status = syncguard_acquire(backend, argv[2], 30000, NULL, &grant, &err);
    else {
        status = syncguard_is_locked(backend, argv[2], NULL, &locked, &err);
        if (status == SYNCGUARD_OK && locked)
            status = SYNCGUARD_LOCKED;
    }
    syncguard_close(backend);
    return exit_code_of(status);
}

syncguard_status in_other_process(const char *action, const char *argument)
{
    fflush(NULL);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        execl("/proc/self/exe", "contract", "--act", contract.url, action, argument, (char *)NULL);
        _exit(127);
    }
    int status = 0;
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    return status_of(WEXITSTATUS(status));
}

/* ---- events ---- */

static struct {
    pthread_mutex_t mutex;
    syncguard_event *events;
    size_t count;
    size_t room;
} recorded = {.mutex = PTHREAD_MUTEX_INITIALIZER};

void record_event(void *context, const syncguard_event *event)
{
    (void)context;
    pthread_mutex_lock(&recorded.mutex);
    if (recorded.count == recorded.room) {
        size_t room = recorded.room > 0 ? recorded.room * 2 : 256;
        syncguard_event *grown = realloc(recorded.events, room * sizeof *grown);
        if (grown != NULL) {
            recorded.events = grown;
            recorded.room = room;
        }
    }
    if (recorded.count < recorded.room)
        recorded.events[recorded.count++] = *event;
    pthread_mutex_unlock(&recorded.mutex);
}

static bool event_matches(const syncguard_event *event, const event_filter *filter,
                          const char *key_hash, const char *id_hash)
{
    return (filter->type < 0 || (int)event->type == filter->type) &&
           (filter->key == NULL || strcmp(event->key_hash, key_hash) == 0) &&
           (filter->lock_id == NULL || strcmp(event->lock_id_hash, id_hash) == 0);
}

size_t count_events(event_filter filter, syncguard_event *last)
{
    char key_hash[SYNCGUARD_HASH_SIZE] = "";
    syncguard_hash(filter.key, key_hash);
    char id_hash[SYNCGUARD_HASH_SIZE] = "";
    syncguard_hash(filter.lock_id, id_hash);
    pthread_mutex_lock(&recorded.mutex);
    size_t found = 0;
    for (size_t i = 0; i < recorded.count; i++) {
        if (!event_matches(&recorded.events[i], &filter, key_hash, id_hash))
            continue;
        found++;
        if (last != NULL)
            *last = recorded.events[i];
    }
    pthread_mutex_unlock(&recorded.mutex);
    return found;
}

size_t await_events(event_filter filter, size_t wanted, syncguard_event *last)
{
    int64_t until = test_now_ms() + 5000;
    while (count_events(filter, NULL) < wanted && test_now_ms() < until)
        test_sleep_ms(5);
    return count_events(filter, last);
}
