/*
 * The program of the contract suite.
 *
 *     contract [--telemetry] [--jobs N] [--group NAME]... [--test PATTERN] [--list] [URL]
 *
 * URL is a backend's URL, or the environment variable CONTRACT_URL. Without --group all groups run.
 * Each group runs in a process of its own, nearly all at the same time, because most tests wait for
 * time to pass; --jobs limits how many run at once. A single --group runs in this process, for
 * debuggers. Exit 0 if all passed.
 */
#include "contract.h"

#include <fnmatch.h>
#include <sys/wait.h>

static const contract_group *const groups[] = {
    &keys_group,    &ids_group,    &fences_group,    &acquire_group,  &release_group,
    &lookup_group,  &time_group,   &races_group,     &options_group,  &helper_group,
    &waiting_group, &handle_group, &heartbeat_group, &abort_group,    &telemetry_group,
    &secrets_group, &clock_group,  &cleanup_group,   &min_hold_group, &queue_group,
    &sets_group,    &slots_group,
/* The sanitizers do not survive a fork while another thread is in their allocator. */
#if !defined(__SANITIZE_THREAD__) && !defined(__SANITIZE_ADDRESS__)
    &fork_group,
#endif
/* The address sanitizer mistakes the stack of a cancelled thread for its own. */
#if !defined(__SANITIZE_ADDRESS__)
    &cancel_group,
#endif
};
#define GROUPS (sizeof groups / sizeof groups[0])

int act(int argc, char **argv);
int open_group(void **state);
int close_group(void **state);
size_t not_applicable_count(void);

/* Tests of a group that run; pattern may be NULL. */
static size_t count_tests(const contract_group *group, const char *pattern)
{
    size_t count = 0;
    for (size_t i = 0; i < group->count; i++)
        count += pattern == NULL || fnmatch(pattern, group->tests[i].name, 0) == 0;
    return count;
}

static int run_group(const contract_group *group, const char *pattern)
{
    int failed =
        _cmocka_run_group_tests(group->name, group->tests, group->count, open_group, close_group);
    printf("@group %s tests=%zu failed=%d not_applicable=%zu\n", group->name,
           count_tests(group, pattern), failed, not_applicable_count());
    fflush(stdout);
    return failed;
}

typedef struct running {
    pid_t pid; /* 0: the group was not chosen */
    FILE *output;
    int64_t started;
    int64_t took;
    int exit_code;
} running;

/* The selection of the command line. */
typedef struct selection {
    bool chosen[GROUPS];
    size_t count;     /* of chosen groups */
    size_t jobs;      /* groups that may run at once */
    const char *test; /* a pattern, or NULL */
} selection;

/* The group counts tries, and a store may wake a waiter when the key of another group is
 * released. */
static bool runs_alone(const contract_group *group)
{
    return group == &helper_group;
}

static void start_group(running *child, const contract_group *group, const char *test)
{
    const char *arguments[10];
    int count = 0;
    arguments[count++] = "contract";
    if (contract.telemetry)
        arguments[count++] = "--telemetry";
    arguments[count++] = "--group";
    arguments[count++] = group->name;
    if (test != NULL) {
        arguments[count++] = "--test";
        arguments[count++] = test;
    }
    arguments[count++] = contract.url;
    arguments[count] = NULL;
    child->output = tmpfile();
    child->started = test_now_ms();
    fflush(NULL);
    child->pid = child->output != NULL ? fork() : -1;
    if (child->pid == 0) {
        dup2(fileno(child->output), STDOUT_FILENO);
        dup2(fileno(child->output), STDERR_FILENO);
        execv("/proc/self/exe", (char *const *)arguments);
        _exit(127);
    }
}

/* Prints what a group wrote and reads its figures. */
static void finish_group(running *child, const contract_group *group, size_t *tests, size_t *failed,
                         size_t *inapplicable)
{
    if (child->output == NULL || child->pid < 0) {
        printf("# %-10s could not be started\n", group->name);
        (*failed)++;
        return;
    }
    rewind(child->output);
    char line[1024];
    char name[64];
    size_t group_tests = 0;
    size_t group_inapplicable = 0;
    int group_failed = 0;
    bool told = false;
    while (fgets(line, sizeof line, child->output) != NULL) {
        if (sscanf(line, "@group %63s tests=%zu failed=%d not_applicable=%zu", name, &group_tests,
                   &group_failed, &group_inapplicable) == 4)
            told = true;
        else
            fputs(line, stdout);
    }
    fclose(child->output);
    *tests += group_tests;
    *inapplicable += group_inapplicable;
    if (!told || (child->exit_code != 0 && group_failed == 0))
        (*failed)++; /* it crashed, or a fixture failed */
    else
        *failed += (size_t)group_failed;
    printf("# %-10s %5lld ms, exit %d\n", told ? name : "(crashed)", (long long)child->took,
           child->exit_code);
}

/* Waits until one group ends. */
static void wait_for_group(running *children)
{
    int status = 0;
    pid_t pid = waitpid(-1, &status, 0);
    for (size_t i = 0; i < GROUPS; i++) {
        if (children[i].pid != pid)
            continue;
        children[i].took = test_now_ms() - children[i].started;
        children[i].exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    }
}

/* Runs the chosen groups of one kind: those that need the store for themselves, or the others. */
static void run_groups(running *children, const selection *wanted, bool alone)
{
    size_t active = 0;
    for (size_t i = 0; i < GROUPS; i++) {
        if (!wanted->chosen[i] || runs_alone(groups[i]) != alone)
            continue;
        for (; active >= wanted->jobs; active--)
            wait_for_group(children);
        start_group(&children[i], groups[i], wanted->test);
        active += children[i].pid > 0;
    }
    for (; active > 0; active--)
        wait_for_group(children);
}

static int run_selection(const selection *wanted)
{
    running children[GROUPS] = {{0}};
    size_t tests = 0, failed = 0, inapplicable = 0;
    int64_t started = test_now_ms();
    run_groups(children, wanted, false);
    run_groups(children, wanted, true);
    for (size_t i = 0; i < GROUPS; i++) {
        if (wanted->chosen[i])
            finish_group(&children[i], groups[i], &tests, &failed, &inapplicable);
    }
    printf("contract%s: %zu tests, %zu failed, %zu not applicable, %lld ms\n",
           contract.telemetry ? " (telemetry)" : "", tests, failed, inapplicable,
           (long long)(test_now_ms() - started));
    return failed == 0 ? 0 : 1;
}

static int groups_print_tests(void)
{
    for (size_t i = 0; i < GROUPS; i++) {
        for (size_t j = 0; j < groups[i]->count; j++)
            printf("%s %s\n", groups[i]->name, groups[i]->tests[j].name);
    }
    return 0;
}

static bool choose_group(selection *wanted, const char *name)
{
    for (size_t i = 0; i < GROUPS; i++) {
        if (strcmp(groups[i]->name, name) != 0)
            continue;
        wanted->count += !wanted->chosen[i];
        wanted->chosen[i] = true;
        return true;
    }
    fprintf(stderr, "contract: there is no group %s\n", name);
    return false;
}

/* 0 if the text is not a number above 0. */
static size_t read_jobs(const char *text)
{
    char *end = NULL;
    long jobs = strtol(text, &end, 10);
    return *end == '\0' && jobs > 0 ? (size_t)jobs : 0;
}

static int run_single_group(const selection *wanted)
{
    size_t i = 0;
    while (!wanted->chosen[i])
        i++;
    return run_group(groups[i], wanted->test) == 0 ? 0 : 1;
}

/* Leaves out the groups without a test that --test selects. False if none is left. */
static bool choose_tests(selection *wanted)
{
    bool any = false;
    for (size_t i = 0; i < GROUPS; i++) {
        wanted->chosen[i] =
            (wanted->chosen[i] || wanted->count == 0) && count_tests(groups[i], wanted->test) > 0;
        any = any || wanted->chosen[i];
    }
    if (!any)
        fprintf(stderr, "contract: no test matches %s\n", wanted->test);
    return any;
}

int main(int argc, char **argv)
{
    selection wanted = {.jobs = GROUPS};
    contract.url = getenv("CONTRACT_URL");
    if (argc > 1 && strcmp(argv[1], "--act") == 0)
        return act(argc - 2, argv + 2);
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--telemetry") == 0)
            contract.telemetry = true;
        else if (strcmp(argv[i], "--list") == 0)
            return groups_print_tests();
        else if (strcmp(argv[i], "--jobs") == 0 && i + 1 < argc)
            wanted.jobs = read_jobs(argv[++i]);
        else if (strcmp(argv[i], "--group") == 0 && i + 1 < argc) {
            if (!choose_group(&wanted, argv[++i]))
                return 64;
        } else if (strcmp(argv[i], "--test") == 0 && i + 1 < argc)
            wanted.test = argv[++i];
        else if (argv[i][0] != '-')
            contract.url = argv[i];
        else {
            fprintf(stderr, "contract: unknown option %s\n", argv[i]);
            return 64;
        }
    }
    if (contract.url == NULL) {
        fprintf(stderr, "contract: a backend URL is needed, as argument or in CONTRACT_URL\n");
        return 64;
    }
    if (wanted.jobs == 0) {
        fprintf(stderr, "contract: --jobs needs a number above 0\n");
        return 64;
    }
    if (wanted.test != NULL)
        cmocka_set_test_filter(wanted.test);
    if (!choose_tests(&wanted))
        return 64;
    if (wanted.count == 1)
        return run_single_group(&wanted);
    return run_selection(&wanted);
}
