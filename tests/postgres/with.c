/*
 * Runs a program with the URL of a server made for it as its last argument:
 *
 *     postgres_with MODE PROGRAM [ARGUMENT...]
 *
 * MODE: plain; serializable (the database's default isolation); restricted (a
 * role that can only read and write rows); bouncer (through PgBouncer in
 * transaction mode); unannounced (the same, but opened as if it were no pooler).
 * The database is serializable behind the pooler too, and refuses to write what
 * is not READ COMMITTED. Exits with the program's code.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "server.h"

static const char *prepare(pg_server *server, const char *mode, char *url, size_t size)
{
    PGconn *pg = pg_plain(server, "locks");
    pid_t pid;

    snprintf(url, size, "%s", pg_url(server, "locks", NULL));
    if (strcmp(mode, "serializable") == 0) {
        pg_make_serializable(pg, "locks");
    } else if (strcmp(mode, "restricted") == 0) {
        pg_sql(pg, "REVOKE CREATE ON SCHEMA public FROM PUBLIC");
        pg_sql(pg, "CREATE ROLE worker LOGIN NOSUPERUSER");
        pg_sql(pg, "GRANT SELECT, INSERT, UPDATE, DELETE ON syncguard_locks TO worker");
        pg_sql(pg, "GRANT SELECT, INSERT, UPDATE ON syncguard_fence_counters TO worker");
        snprintf(url, size, "%s", pg_url_as(server, "worker", "locks", NULL));
    } else if (strcmp(mode, "bouncer") == 0) {
        pg_make_serializable(pg, "locks");
        snprintf(url, size, "postgres://postgres@127.0.0.1:%d/locks?pooler=1",
                 pg_bouncer(server, "", &pid));
    } else if (strcmp(mode, "unannounced") == 0) {
        pg_make_serializable(pg, "locks");
        snprintf(url, size, "postgres://postgres@127.0.0.1:%d/locks?listen=0",
                 pg_bouncer(server, "ignore_startup_parameters=options", &pid));
    } else if (strcmp(mode, "plain") != 0) {
        pg_die("unknown mode %s", mode);
    }
    PQfinish(pg);
    return url;
}

int main(int argc, char **argv)
{
    char url[256];
    char *words[32];
    pg_server *server;
    int status = 0;
    int count = 0;
    pid_t pid;

    if (argc < 3 || argc > 30)
        pg_die("usage: postgres_with MODE PROGRAM [ARGUMENT...]");
    server = pg_server_start("max_connections=300\nfsync=off");
    pg_make_database(server, "locks");
    prepare(server, argv[1], url, sizeof url);
    for (int i = 2; i < argc; i++)
        words[count++] = argv[i];
    words[count++] = url;
    words[count] = NULL;
    fflush(NULL);
    pid = fork();
    if (pid == 0) {
        execv(words[0], words);
        _exit(127);
    }
    if (pid < 0 || waitpid(pid, &status, 0) != pid)
        pg_die("cannot run %s", words[0]);
    pg_server_end(server);
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}
