/* See client.h. PYTHON and SERVERS are the interpreter and this folder. */
#include "client.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static FILE *requests;
static FILE *replies;
static pid_t keeper;
static pid_t owner;

static void give_up(const char *text)
{
    fprintf(stderr, "servers: %s\n", text);
    exit(2);
}

/* The servers end when this program has ended. */
static void end_keeper(void)
{
    if (owner != getpid())
        return;
    fclose(requests);
    waitpid(keeper, NULL, 0);
}

static void start_keeper(void)
{
    int to[2];
    int from[2];
    if (pipe2(to, O_CLOEXEC) != 0 || pipe2(from, O_CLOEXEC) != 0)
        give_up("no pipe");
    owner = getpid();
    fflush(NULL);
    keeper = fork();
    if (keeper == 0) {
        prctl(PR_SET_PDEATHSIG, SIGTERM);
        if (getppid() != owner || dup2(to[0], STDIN_FILENO) < 0 || dup2(from[1], STDOUT_FILENO) < 0)
            _exit(127);
        execl(PYTHON, PYTHON, SERVERS, "--serve", (char *)NULL);
        _exit(127);
    }
    close(to[0]);
    close(from[1]);
    requests = fdopen(to[1], "w");
    replies = fdopen(from[0], "r");
    if (keeper < 0 || requests == NULL || replies == NULL || atexit(end_keeper) != 0)
        give_up("they cannot be started");
}

static void read_reply(test_server *server, char *text)
{
    server->number = (int)strtol(text, &text, 10);
    server->port = (int)strtol(text, &text, 10);
    server->pid = (pid_t)strtol(text, &text, 10);
    text[strcspn(text, "\n")] = '\0';
    snprintf(server->folder, sizeof server->folder, "%s", text + 1);
}

static void servers_request(test_server *server, const char *verb, int number,
                            const char *const *words)
{
    pthread_mutex_lock(&mutex);
    if (owner != getpid())
        start_keeper();
    fputs(verb, requests);
    if (number >= 0)
        fprintf(requests, "\t%d", number);
    for (size_t i = 0; words != NULL && words[i] != NULL; i++)
        fprintf(requests, "\t%s", words[i]);
    fputc('\n', requests);
    char line[4096];
    if (fflush(requests) != 0 || fgets(line, sizeof line, replies) == NULL)
        give_up("no reply");
    if (strncmp(line, "ok ", 3) != 0)
        give_up(line);
    read_reply(server, line + 3);
    pthread_mutex_unlock(&mutex);
}

void servers_ask(test_server *server, const char *verb, const char *const *words)
{
    servers_request(server, verb, -1, words);
}

void servers_change(test_server *server, const char *verb, const char *const *words)
{
    servers_request(server, verb, server->number, words);
}
