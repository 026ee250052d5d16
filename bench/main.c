/*
 * syncguard-bench [-b URL]... [--json] [--plot FILE] [--repeat N] [--read FILE]
 *                 [--own] [--brief] [GROUP...]
 *
 * `syncguard bench` and `make bench` call it. Without -b: the URL in SYNCGUARD_BENCH_URL, else
 * memory, and a new SQLite file below the working directory. With --read FILE nothing is measured:
 * the figures are those of earlier runs, as JSON lines, for a plot of them all. With --own, for a
 * server that has no other users, pairs and hand-overs (with Redis threads too) are measured with
 * the server on one processor and all its clients on another, then left to the scheduler. By
 * default only the groups run that fill no store and take little time. --brief fills with a
 * hundredth, to try the program. Exits 1 if a bar is missed, 69 if no store can be reached.
 *
 * Everything is written to a place of our own in each store (place.c), which is removed at the end,
 * however the measurement ends (supervise.c); on a server of our own it is removed together with
 * the server.
 */
#include <getopt.h>

#include "bench.h"
#include "syncguard/sys/backend.h"

#define MOST_STORES 16
#define EXIT_USAGE 64
#define EXIT_UNAVAILABLE 69
#define EXIT_REFUSED 77

typedef struct group {
    const char *name;
    void (*measure)(const bench_store *store);
    bool when_asked; /* fills the store, or takes minutes */
} group;

static const group groups[] = {
    {"pair", bench_pairs, false},         {"threads", bench_threads, false},
    {"handover", bench_handover, false},  {"waiters", bench_waiters, false},
    {"renewals", bench_renewals, false},  {"memory", bench_memory, false},
#ifdef BENCH_REDIS
    {"server", bench_server_time, false},
#endif
    {"takeover", bench_takeover, true},   {"growth", bench_growth, true},
    {"held", bench_held, true},
};
#define GROUPS (sizeof groups / sizeof groups[0])

#ifdef BENCH_SQLITE
extern const syncguard_module syncguard_module_sqlite;
#endif
#ifdef BENCH_REDIS
extern const syncguard_module syncguard_module_redis;
#endif
#ifdef BENCH_POSTGRES
extern const syncguard_module syncguard_module_postgres;
#endif
#ifdef BENCH_FIRESTORE
extern const syncguard_module syncguard_module_firestore;
#endif

static const struct {
    const bench_raw *raw;
    const syncguard_module *module;
} known[] = {
    {&bench_raw_memory, NULL},
#ifdef BENCH_SQLITE
    {&bench_raw_sqlite, &syncguard_module_sqlite},
#endif
#ifdef BENCH_REDIS
    {&bench_raw_redis, &syncguard_module_redis},
#endif
#ifdef BENCH_POSTGRES
    {&bench_raw_postgres, &syncguard_module_postgres},
#endif
#ifdef BENCH_FIRESTORE
    {&bench_raw_firestore, &syncguard_module_firestore},
#endif
};
#define KNOWN (sizeof known / sizeof known[0])

static void bench_exit_usage(const char *why)
{
    fprintf(stderr, "syncguard-bench: %s; groups:", why);
    for (size_t i = 0; i < GROUPS; i++)
        fprintf(stderr, " %s", groups[i].name);
    fputs(" all\n", stderr);
    exit(EXIT_USAGE);
}

static const bench_raw *raw_of(const char *url)
{
    for (size_t i = 0; i < KNOWN; i++) {
        if (strncmp(url, known[i].raw->scheme, strlen(known[i].raw->scheme)) == 0)
            return known[i].raw;
    }
    return NULL;
}

static bool url_is_reachable(const char *url)
{
    syncguard_backend *backend = NULL;
    syncguard_error err;
    bool locked = false;
    if (syncguard_setup(url, NULL, NULL, NULL, &err) != SYNCGUARD_OK ||
        syncguard_open(url, NULL, &backend, &err) != SYNCGUARD_OK ||
        syncguard_is_locked(backend, "bench:reachable", NULL, &locked, &err) != SYNCGUARD_OK) {
        fprintf(stderr, "syncguard-bench: %s is left out: %s\n", raw_of(url)->name, err.message);
        syncguard_close(backend);
        return false;
    }
    syncguard_close(backend);
    return true;
}

static bool group_is_wanted(const group *g, char **names, int count)
{
    if (count == 0)
        return !g->when_asked;
    for (int i = 0; i < count; i++) {
        if (strcmp(names[i], g->name) == 0 || strcmp(names[i], "all") == 0)
            return true;
    }
    return false;
}

static void check_groups(char **names, int count)
{
    for (int i = 0; i < count; i++) {
        bool found = strcmp(names[i], "all") == 0;
        for (size_t k = 0; k < GROUPS; k++)
            found = found || strcmp(names[i], groups[k].name) == 0;
        if (!found)
            bench_exit_usage("unknown group");
    }
}

static void register_all(void)
{
    for (size_t i = 0; i < KNOWN; i++) {
        if (known[i].module != NULL &&
            syncguard_module_register(known[i].module, NULL) != SYNCGUARD_OK)
            bench_die(known[i].raw->name, "cannot be registered");
    }
}

/* Runs a child of this program, or the command of a single answer: -1 if the arguments name
 * neither. */
static int child_command_run(int argc, char **argv)
{
    const char *given = getenv(BENCH_URL_VARIABLE);
    if (given == NULL || argc < 3)
        return -1;
    if (argc == 6 && strcmp(argv[1], "--turns") == 0)
        return bench_take_turns(given, argv + 2);
    if (argc == 4 && strcmp(argv[1], "--ask") == 0)
        return bench_answer(given, argv[2], argv[3]);
    if (argc == 3 && strcmp(argv[1], "--remember") == 0)
        return bench_remember(given, argv[2]);
    return -1;
}

typedef struct place {
    const bench_raw *raw;
    const char *given; /* URL of the store */
    char url[BENCH_URL_SIZE];
} place;

typedef struct wish {
    const char *urls[MOST_STORES];
    int count;
    int repetitions;
    int refused; /* exit code for the last store that was left out */
    bool own_server;
    bool brief;
    const char *plot;
    const char *earlier; /* figures to read instead of measuring */
    char own[BENCH_URL_SIZE];
    place places[MOST_STORES];
    int place_count;
    char **groups;
    int group_count;
} wish;

static void read_options(int argc, char **argv, wish *w)
{
    static const struct option options[] = {
        {"backend", required_argument, NULL, 'b'}, {"json", no_argument, NULL, 'j'},
        {"plot", required_argument, NULL, 'p'},    {"repeat", required_argument, NULL, 'r'},
        {"read", required_argument, NULL, 'f'},    {"own", no_argument, NULL, 'o'},
        {"brief", no_argument, NULL, 's'},         {NULL, 0, NULL, 0}};
    int letter;
    while ((letter = getopt_long(argc, argv, "b:", options, NULL)) != -1) {
        if (letter == 'b' && w->count < MOST_STORES)
            w->urls[w->count++] = optarg;
        else if (letter == 'j')
            bench_report_json(true);
        else if (letter == 'o')
            w->own_server = true;
        else if (letter == 's')
            w->brief = true;
        else if (letter == 'p')
            w->plot = optarg;
        else if (letter == 'f')
            w->earlier = optarg;
        else if (letter == 'r')
            w->repetitions = (int)strtol(optarg, NULL, 10);
        else
            bench_exit_usage("unknown option");
    }
    w->groups = argv + optind;
    w->group_count = argc - optind;
    check_groups(w->groups, w->group_count);
    if (w->repetitions < 1 || w->repetitions > BENCH_MAX_REPETITIONS)
        bench_exit_usage("--repeat is 1 to 25");
}

static void choose_stores(wish *w)
{
    const char *given = getenv(BENCH_URL_VARIABLE);
    if (given != NULL) { /* a copy: it is set anew for each child */
        snprintf(w->own, sizeof w->own, "%s", given);
        w->urls[w->count++] = w->own;
        return;
    }
    w->urls[w->count++] = "memory:";
    snprintf(w->own, sizeof w->own, "sqlite:%s/locks.db", bench_folder());
    if (raw_of(w->own) != NULL)
        w->urls[w->count++] = w->own;
}

/* False if the store cannot be reached. */
static bool place_measure(const place *p, const wish *w)
{
    if (!url_is_reachable(p->url))
        return false;
    bench_store store = {p->raw, p->url, w->repetitions, w->own_server, w->brief};
    for (size_t k = 0; k < GROUPS; k++) {
        if (!group_is_wanted(&groups[k], w->groups, w->group_count))
            continue;
        if (groups[k].when_asked && !store.own && p->raw->may_fill != NULL &&
            !p->raw->may_fill(p->url))
            continue;
        bench_tidy(&store);
        groups[k].measure(&store);
    }
    return true;
}

/* Runs in a process of its own. */
static int measure_all(void *context)
{
    const wish *w = context;
    int reached = w->earlier != NULL;
    if (w->earlier != NULL)
        bench_read(w->earlier);
    for (int i = 0; i < w->place_count; i++)
        reached += place_measure(&w->places[i], w);
    if (reached == 0)
        return w->refused != 0 ? w->refused : EXIT_UNAVAILABLE;
    if (w->plot != NULL)
        bench_plot(w->plot);
    return bench_all_hold() ? 0 : 1;
}

static int place_clear(void *context)
{
    const place *p = context;
    p->raw->clear(p->url);
    return 0;
}

/* Calls of the library have a deadline, those of the plain clients have none: this call detects a
 * server that hangs. */
static int place_probe(void *context)
{
    const place *p = context;
    syncguard_backend *backend = NULL;
    syncguard_error err;
    bool locked = false;
    syncguard_status status = syncguard_open(p->url, NULL, &backend, &err);
    if (status == SYNCGUARD_OK)
        status = syncguard_is_locked(backend, "bench:reachable", NULL, &locked, &err);
    syncguard_close(backend);
    /* If the tables do not exist yet, the answer is InvalidArgument. */
    if (status == SYNCGUARD_OK || status == SYNCGUARD_E_INVALID_ARGUMENT)
        return 0;
    fprintf(stderr, "syncguard-bench: %s\n", err.message);
    return status == SYNCGUARD_E_AUTH_FAILED ? EXIT_REFUSED : EXIT_UNAVAILABLE;
}

/* Returns the exit code of the first step that failed, or 0. */
static int place_prepare(place *p)
{
    int code = p->raw->clear == NULL ? 0 : bench_supervise(place_probe, p);
    if (code == 0 && p->raw->clear != NULL)
        code = bench_supervise(place_clear, p) == 0 ? 0 : EXIT_UNAVAILABLE;
    return code;
}

/* Chooses a place in every store. A store is left out if its place cannot be cleaned up. */
static void choose_places(wish *w)
{
    for (int i = 0; i < w->count && bench_ended_by() == 0; i++) {
        char name[BENCH_NAME_SIZE];
        place *p = &w->places[w->place_count];
        p->raw = raw_of(w->urls[i]);
        if (p->raw == NULL)
            bench_exit_usage("there is no plain client for one of the stores");
        bench_make_name(name);
        if (p->raw->place != NULL)
            p->raw->place(w->urls[i], name, p->url, sizeof p->url);
        else
            snprintf(p->url, sizeof p->url, "%s", w->urls[i]);
        int code = place_prepare(p);
        if (code == 0) {
            w->place_count++;
        } else if (bench_ended_by() == 0) {
            w->refused = code;
            fprintf(stderr, "syncguard-bench: %s is left out\n", p->raw->name);
        }
    }
}

static void clear_places(wish *w)
{
    if (bench_ended_by() != 0)
        fputs("syncguard-bench: interrupted; what was written is removed\n", stderr);
    for (int i = 0; i < w->place_count; i++) {
        place *p = &w->places[i];
        char shown[BENCH_NAME_SIZE];
        if (p->raw->clear == NULL || w->own_server)
            continue;
        if (bench_supervise(place_clear, p) == 0)
            continue;
        snprintf(shown, sizeof shown, "%.28s", strstr(p->url, "syncguard_bench_"));
        fprintf(stderr, "syncguard-bench: what is named %s... is left in %s\n", shown,
                p->raw->name);
    }
}

int main(int argc, char **argv)
{
    static wish w = {.repetitions = 5};
    register_all();
    int code = child_command_run(argc, argv);
    if (code >= 0)
        return code;
    read_options(argc, argv, &w);
    if (w.earlier != NULL)
        return measure_all(&w);
    bench_make_folder();
    if (w.count == 0)
        choose_stores(&w);
    bench_supervise_start();
    choose_places(&w);
    code = bench_ended_by() != 0 ? 128 + bench_ended_by() : bench_supervise(measure_all, &w);
    clear_places(&w);
    bench_remove_tree(bench_folder());
    return code;
}
