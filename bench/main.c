/*
 * syncguard-bench [-b URL]... [--json] [--plot FILE] [--repeat N] [--read FILE]
 *                 [GROUP...]
 *
 * `syncguard bench` and `make bench` call it. Without -b: the URL in SYNCGUARD_BENCH_URL, else
 * memory, and a new SQLite file below the working directory. With --read FILE nothing is measured:
 * the figures are those of earlier runs, as JSON lines, for a plot of them all. Groups that were
 * not asked for are those that fill no store and are over soon. Exits 1 if a bar is missed, 69 if
 * no store can be reached.
 */
#include <getopt.h>

#include "bench.h"
#include "syncguard/sys/backend.h"

#define MOST_STORES 16
#define EXIT_USAGE 64
#define EXIT_UNAVAILABLE 69

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

static void usage(const char *why)
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

static bool reachable(const char *url)
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

static bool wanted(const group *g, char **names, int count)
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
            usage("unknown group");
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

int main(int argc, char **argv)
{
    static const struct option options[] = {
        {"backend", required_argument, NULL, 'b'}, {"json", no_argument, NULL, 'j'},
        {"plot", required_argument, NULL, 'p'},    {"repeat", required_argument, NULL, 'r'},
        {"read", required_argument, NULL, 'f'},    {NULL, 0, NULL, 0}};
    const char *urls[MOST_STORES];
    char own[BENCH_URL_SIZE];
    const char *plot = NULL;
    const char *earlier = NULL;
    const char *given = getenv(BENCH_URL_VARIABLE);
    int count = 0, reached = 0, repetitions = 5, letter;

    register_all();
    if (given != NULL && argc == 6 && strcmp(argv[1], "--turns") == 0)
        return bench_take_turns(given, argv + 2);
    if (given != NULL && argc == 4 && strcmp(argv[1], "--ask") == 0)
        return bench_answer(given, argv[2], argv[3]);
    if (given != NULL && argc == 3 && strcmp(argv[1], "--remember") == 0)
        return bench_remember(given, argv[2]);
    while ((letter = getopt_long(argc, argv, "b:", options, NULL)) != -1) {
        if (letter == 'b' && count < MOST_STORES)
            urls[count++] = optarg;
        else if (letter == 'j')
            bench_report_json(true);
        else if (letter == 'p')
            plot = optarg;
        else if (letter == 'f')
            earlier = optarg;
        else if (letter == 'r')
            repetitions = (int)strtol(optarg, NULL, 10);
        else
            usage("unknown option");
    }
    check_groups(argv + optind, argc - optind);
    if (repetitions < 1 || repetitions > BENCH_MAX_REPETITIONS)
        usage("--repeat is 1 to 25");
    if (earlier != NULL) {
        bench_read(earlier);
        reached++;
    } else if (count == 0 && given != NULL) {
        urls[count++] = strdup(given); /* is set anew for each child */
    } else if (count == 0) {
        urls[count++] = "memory:";
        snprintf(own, sizeof own, "sqlite:%s/locks.db", bench_folder());
        if (raw_of(own) != NULL)
            urls[count++] = own;
    }
    for (int i = 0; i < count; i++) {
        if (raw_of(urls[i]) == NULL)
            usage("there is no plain client for one of the stores");
        if (!reachable(urls[i]))
            continue;
        bench_store store = {raw_of(urls[i]), urls[i], repetitions};
        reached++;
        for (size_t k = 0; k < GROUPS; k++) {
            if (wanted(&groups[k], argv + optind, argc - optind))
                groups[k].measure(&store);
        }
    }
    if (reached == 0)
        return EXIT_UNAVAILABLE;
    if (plot != NULL)
        bench_plot(plot);
    return bench_all_hold() ? 0 : 1;
}
