/* See server.h. Children die with their parent (PR_SET_PDEATHSIG), also when it crashes. */
#include "server.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <glob.h>
#include <grp.h>
#include <pwd.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "syncguard.h"

#define MAX_WORDS 48

void pg_die(const char *format, ...)
{
    va_list arguments;

    va_start(arguments, format);
    fputs("postgres fixture: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    exit(2);
}

int pg_free_port(void)
{
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t length = sizeof address;
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    if (fd < 0 || bind(fd, (struct sockaddr *)&address, sizeof address) != 0 ||
        getsockname(fd, (struct sockaddr *)&address, &length) != 0)
        pg_die("no free port");
    close(fd);
    return ntohs(address.sin_port);
}

static const char *bin(const char *program)
{
    static char path[512];
    glob_t found;

    if (glob("/usr/lib/postgresql/*/bin", 0, NULL, &found) != 0 || found.gl_pathc == 0) {
        snprintf(path, sizeof path, "%s", program);
    } else {
        snprintf(path, sizeof path, "%s/%s", found.gl_pathv[found.gl_pathc - 1], program);
        globfree(&found);
    }
    return path;
}

static const struct passwd *server_user(void)
{
    const struct passwd *user;

    if (geteuid() != 0)
        return NULL;
    user = getpwnam("postgres");
    if (!user)
        user = getpwnam("nobody");
    if (!user)
        pg_die("PostgreSQL does not run as root, and there is no user postgres or nobody");
    return user;
}

/* Starts a program as a user that is not root, silent unless it is wanted loud. */
static pid_t launch(char *const *words, const char *log)
{
    const struct passwd *user = server_user();
    pid_t parent = getpid();
    pid_t pid = fork();

    if (pid != 0)
        return pid;
    if (user && (setgid(user->pw_gid) != 0 || initgroups(user->pw_name, user->pw_gid) != 0 ||
                 setuid(user->pw_uid) != 0))
        _exit(126);
    prctl(PR_SET_PDEATHSIG, SIGINT);
    if (getppid() != parent)
        _exit(126);
    if (chdir("/") != 0)
        _exit(126);
    int out = open(log, O_WRONLY | O_CREAT | O_APPEND, 0644);
    if (out >= 0) {
        dup2(out, STDOUT_FILENO);
        dup2(out, STDERR_FILENO);
    }
    execvp(words[0], words);
    _exit(127);
}

static void run(pg_server *server, char *const *words)
{
    char log[128];
    int status = 0;
    pid_t pid;

    snprintf(log, sizeof log, "%s/log", server->folder);
    pid = launch(words, log);
    if (pid < 0 || waitpid(pid, &status, 0) != pid || status != 0)
        pg_die("%s failed (see %s)", words[0], log);
}

static pg_server *make(void)
{
    pg_server *server = calloc(1, sizeof *server);
    const struct passwd *user = server_user();

    if (!server)
        pg_die("no memory");
    snprintf(server->folder, sizeof server->folder, "/tmp/syncguard-pg.XXXXXX");
    if (!mkdtemp(server->folder))
        pg_die("no folder in /tmp");
    chmod(server->folder, 0755);
    if (user && chown(server->folder, user->pw_uid, user->pw_gid) != 0)
        pg_die("chown failed");
    snprintf(server->data, sizeof server->data, "%s/data", server->folder);
    server->port = pg_free_port();
    return server;
}

static void await(pg_server *server)
{
    char conninfo[160];

    snprintf(conninfo, sizeof conninfo,
             "host=127.0.0.1 port=%d user=postgres dbname=postgres connect_timeout=2",
             server->port);
    for (int i = 0; i < 3000; i++) {
        if (PQping(conninfo) == PQPING_OK)
            return;
        if (waitpid(server->pid, NULL, WNOHANG) == server->pid)
            pg_die("the server ended (see %s/log)", server->folder);
        usleep(10000);
    }
    pg_die("the server did not come up");
}

void pg_server_up(pg_server *server)
{
    char port[16], log[128], sockets[128];
    char settings[sizeof server->settings];
    char program[512];
    char *words[MAX_WORDS];
    int count = 0;

    snprintf(program, sizeof program, "%s", bin("postgres"));
    snprintf(port, sizeof port, "%d", server->port);
    snprintf(log, sizeof log, "%s/log", server->folder);
    snprintf(sockets, sizeof sockets, "unix_socket_directories=%s", server->folder);
    snprintf(settings, sizeof settings, "%s", server->settings);
    words[count++] = program;
    words[count++] = (char *)"-D";
    words[count++] = server->data;
    words[count++] = (char *)"-p";
    words[count++] = port;
    words[count++] = (char *)"-c";
    words[count++] = sockets;
    words[count++] = (char *)"-c";
    words[count++] = (char *)"listen_addresses=127.0.0.1";
    for (char *line = settings; *line && count < MAX_WORDS - 2;) {
        size_t length = strcspn(line, "\n");
        char *next = line[length] ? line + length + 1 : line + length;

        line[length] = '\0';
        if (length) {
            words[count++] = (char *)"-c";
            words[count++] = line;
        }
        line = next;
    }
    words[count] = NULL;
    server->pid = launch(words, log);
    if (server->pid < 0)
        pg_die("fork failed");
    await(server);
}

pg_server *pg_server_start(const char *settings)
{
    pg_server *server = make();
    char program[512];
    char *words[] = {program,         (char *)"-D",         server->data,
                     (char *)"-U",    (char *)"postgres",   (char *)"-A",
                     (char *)"trust", (char *)"-N",         (char *)"-E",
                     (char *)"UTF8",  (char *)"--locale=C", NULL};

    snprintf(program, sizeof program, "%s", bin("initdb"));
    snprintf(server->settings, sizeof server->settings, "%s", settings ? settings : "");
    run(server, words);
    pg_server_up(server);
    return server;
}

pg_server *pg_server_standby(pg_server *primary)
{
    pg_server *server = make();
    char program[512], source[16];
    char *words[] = {program,
                     (char *)"-D",
                     server->data,
                     (char *)"-h",
                     (char *)"127.0.0.1",
                     (char *)"-p",
                     source,
                     (char *)"-U",
                     (char *)"postgres",
                     (char *)"-R",
                     (char *)"-c",
                     (char *)"fast",
                     (char *)"--no-sync",
                     NULL};

    snprintf(program, sizeof program, "%s", bin("pg_basebackup"));
    snprintf(source, sizeof source, "%d", primary->port);
    run(server, words);
    pg_server_up(server);
    return server;
}

void pg_server_promote(pg_server *server)
{
    PGconn *pg = pg_plain(server, "postgres");

    pg_sql(pg, "SELECT pg_promote(true, 30)");
    PQfinish(pg);
}

void pg_server_down(pg_server *server, int mode)
{
    if (server->pid <= 0)
        return;
    kill(server->pid, SIGCONT);
    kill(server->pid, mode);
    waitpid(server->pid, NULL, 0);
    server->pid = 0;
}

void pg_server_end(pg_server *server)
{
    char command[128];

    if (!server)
        return;
    pg_server_down(server, SIGINT);
    snprintf(command, sizeof command, "rm -rf '%s'", server->folder);
    if (strncmp(server->folder, "/tmp/syncguard-pg.", 18) == 0 && system(command) != 0)
        fprintf(stderr, "postgres fixture: %s stays\n", server->folder);
    free(server);
}

const char *pg_url_as(pg_server *server, const char *user, const char *database, const char *query)
{
    char *out = server->text[server->next_text++ % 4];

    snprintf(out, sizeof server->text[0], "postgres://%s@127.0.0.1:%d/%s%s%s", user, server->port,
             database, query ? "?" : "", query ? query : "");
    return out;
}

const char *pg_url(pg_server *server, const char *database, const char *query)
{
    return pg_url_as(server, "postgres", database, query);
}

static void be_silent(void *context, const PGresult *result)
{
    (void)context;
    (void)result;
}

PGconn *pg_plain(pg_server *server, const char *database)
{
    PGconn *pg = PQconnectdb(pg_url(server, database, "sslmode=disable"));

    if (PQstatus(pg) != CONNECTION_OK)
        pg_die("%s", PQerrorMessage(pg));
    PQsetNoticeReceiver(pg, be_silent, NULL);
    /* A test that fails half-way must not stop those after it. */
    PQclear(PQexec(pg, "SET statement_timeout = '30 s'; SET idle_in_transaction_session_timeout = "
                       "'20 s'"));
    return pg;
}

static const char *ask(PGconn *pg, const char *format, va_list arguments)
{
    static _Thread_local char value[1024];
    char sql[2048];
    PGresult *result;
    int rows;

    vsnprintf(sql, sizeof sql, format, arguments);
    result = PQexec(pg, sql);
    if (PQresultStatus(result) != PGRES_TUPLES_OK && PQresultStatus(result) != PGRES_COMMAND_OK)
        pg_die("%s: %s", sql, PQerrorMessage(pg));
    rows = PQntuples(result);
    snprintf(value, sizeof value, "%s", rows > 0 ? PQgetvalue(result, rows - 1, 0) : "");
    PQclear(result);
    return value;
}

const char *pg_sql(PGconn *pg, const char *format, ...)
{
    const char *value;
    va_list arguments;

    va_start(arguments, format);
    value = ask(pg, format, arguments);
    va_end(arguments);
    return value;
}

long pg_number(PGconn *pg, const char *format, ...)
{
    const char *value;
    va_list arguments;

    va_start(arguments, format);
    value = ask(pg, format, arguments);
    va_end(arguments);
    return strtol(value, NULL, 10);
}

void pg_make_database(pg_server *server, const char *name)
{
    PGconn *pg = pg_plain(server, "postgres");
    syncguard_error err;

    pg_sql(pg, "CREATE DATABASE %s", name);
    PQfinish(pg);
    if (syncguard_setup(pg_url(server, name, NULL), NULL, NULL, NULL, &err) != SYNCGUARD_OK)
        pg_die("setup: %s", err.message);
}

void pg_make_serializable(PGconn *pg, const char *database)
{
    pg_sql(pg, "ALTER DATABASE %s SET default_transaction_isolation = 'serializable'", database);
    pg_sql(pg, "CREATE FUNCTION check_level() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
               "IF current_setting('transaction_isolation') <> 'read committed' THEN "
               "RAISE 'written as %%', current_setting('transaction_isolation'); END IF; "
               "RETURN coalesce(NEW, OLD); END $$");
    pg_sql(pg, "CREATE TRIGGER level BEFORE INSERT OR UPDATE OR DELETE ON syncguard_locks "
               "FOR EACH ROW EXECUTE FUNCTION check_level()");
    pg_sql(pg, "CREATE TRIGGER level BEFORE INSERT OR UPDATE OR DELETE ON "
               "syncguard_fence_counters FOR EACH ROW EXECUTE FUNCTION check_level()");
}

int pg_bouncer(pg_server *server, const char *more, pid_t *pid)
{
    return pg_bouncer_as(server, "postgres", more, pid);
}

int pg_bouncer_as(pg_server *server, const char *user, const char *more, pid_t *pid)
{
    char path[128], users[128], log[128];
    char *words[] = {(char *)"pgbouncer", (char *)"-q", path, NULL};
    int port = pg_free_port();
    FILE *file;

    snprintf(path, sizeof path, "%s/bouncer.ini", server->folder);
    snprintf(users, sizeof users, "%s/users", server->folder);
    snprintf(log, sizeof log, "%s/bouncer.log", server->folder);
    file = fopen(users, "w");
    if (!file || fprintf(file, "\"postgres\" \"\"\n") < 0 || fclose(file) != 0)
        pg_die("cannot write %s", users);
    file = fopen(path, "w");
    if (!file ||
        fprintf(file,
                "[databases]\n* = host=127.0.0.1 port=%d\n[pgbouncer]\nlisten_addr=127.0.0.1\n"
                "listen_port=%d\nauth_type=any\nauth_file=%s\npool_mode=transaction\n"
                "unix_socket_dir=\ndefault_pool_size=4\nmax_client_conn=200\n%s\n"
                "[databases]\n* = host=127.0.0.1 port=%d user=%s\n",
                server->port, port, users, more, server->port, user) < 0 ||
        fclose(file) != 0)
        pg_die("cannot write %s", path);
    *pid = launch(words, log);
    for (int i = 0; i < 500; i++) {
        char conninfo[160];

        snprintf(conninfo, sizeof conninfo,
                 "host=127.0.0.1 port=%d user=postgres dbname=postgres sslmode=disable", port);
        if (PQping(conninfo) == PQPING_OK)
            return port;
        usleep(20000);
    }
    pg_die("PgBouncer did not come up (see %s)", log);
}
