/*
 * The program of the contract suite.
 *
 *     contract [--telemetry] [--serial] [--group NAME] [--test PATTERN] [--list] [URL]
 *
 * URL is a backend's URL, or the environment variable CONTRACT_URL. Each group
 * runs in a process of its own, nearly all at the same time, because most tests wait
 * for time to pass; --serial or --group runs in this process. Exit 0 if all passed.
 */
#include "contract.h"

#include <errno.h>
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
/* The address sanitizer takes the stack of a cancelled thread for its own. */
#if !defined(__SANITIZE_ADDRESS__)
    &cancel_group,
#endif
};
#define GROUPS (sizeof groups / sizeof groups[0])

int act(int argc, char **argv);
int open_group(void **state);
int close_group(void **state);
size_t not_applicable_count(void);

static int run_group(const contract_group *group)
{
    int failed =
        _cmocka_run_group_tests(group->name, group->tests, group->count, open_group, close_group);

    printf("@group %s tests=%zu failed=%d not_applicable=%zu\n", group->name, group->count, failed,
           not_applicable_count());
    fflush(stdout);
    return failed;
}

typedef struct running {
    pid_t pid;
    FILE *output;
    int64_t started;
    int64_t took;
    int exit_code;
} running;

/* It counts tries, and a store may wake a waiter when the key of another group is released. */
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
    child->started = now_ms();
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
static void finish_group(running *child, size_t *tests, size_t *failed, size_t *inapplicable)
{
    char line[1024];
    char name[64];
    size_t group_tests = 0, group_inapplicable = 0;
    int group_failed = 0;
    bool told = false;

    if (child->output == NULL || child->pid < 0) {
        (*failed)++;
        return;
    }
    rewind(child->output);
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

/* Starts the groups that run at this time, and waits for them. */
static void run_groups(running *children, const char *test, bool alone)
{
    size_t left = 0;

    for (size_t i = 0; i < GROUPS; i++) {
        if (runs_alone(groups[i]) != alone)
            continue;
        start_group(&children[i], groups[i], test);
        left += children[i].pid > 0;
    }
    for (; left > 0; left--) {
        int status = 0;
        pid_t pid = waitpid(-1, &status, 0);
        for (size_t i = 0; i < GROUPS; i++) {
            if (children[i].pid != pid)
                continue;
            children[i].took = now_ms() - children[i].started;
            children[i].exit_code =
                WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
        }
    }
}

static int run_all(const char *test)
{
    running children[GROUPS];
    size_t tests = 0, failed = 0, inapplicable = 0;
    int64_t started = now_ms();

    memset(children, 0, sizeof children);
    run_groups(children, test, false);
    run_groups(children, test, true);
    for (size_t i = 0; i < GROUPS; i++)
        finish_group(&children[i], &tests, &failed, &inapplicable);
    printf("contract%s: %zu tests, %zu failed, %zu not applicable, %lld ms\n",
           contract.telemetry ? " (telemetry)" : "", tests, failed, inapplicable,
           (long long)(now_ms() - started));
    return failed == 0 ? 0 : 1;
}

static int list(void)
{
    for (size_t i = 0; i < GROUPS; i++) {
        for (size_t j = 0; j < groups[i]->count; j++)
            printf("%s %s\n", groups[i]->name, groups[i]->tests[j].name);
    }
    return 0;
}

static int run_named(const char *name)
{
    for (size_t i = 0; i < GROUPS; i++) {
        if (strcmp(groups[i]->name, name) == 0)
            return run_group(groups[i]) == 0 ? 0 : 1;
    }
    fprintf(stderr, "contract: there is no group %s\n", name);
    return 64;
}

int main(int argc, char **argv)
{
    const char *group = NULL;
    const char *test = NULL;
    bool serial = false;
    int failed = 0;

    contract.url = getenv("CONTRACT_URL");
    if (argc > 1 && strcmp(argv[1], "--act") == 0)
        return act(argc - 2, argv + 2);
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--telemetry") == 0)
            contract.telemetry = true;
        else if (strcmp(argv[i], "--serial") == 0)
            serial = true;
        else if (strcmp(argv[i], "--list") == 0)
            return list();
        else if (strcmp(argv[i], "--group") == 0 && i + 1 < argc)
            group = argv[++i];
        else if (strcmp(argv[i], "--test") == 0 && i + 1 < argc)
            test = argv[++i];
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
    if (test != NULL)
        cmocka_set_test_filter(test);
    if (group != NULL)
        return run_named(group);
    if (!serial)
        return run_all(test);
    for (size_t i = 0; i < GROUPS; i++)
        failed += run_group(groups[i]);
    return failed == 0 ? 0 : 1;
}
