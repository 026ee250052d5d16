/* See server.h. */
#include "server.h"

#include <arpa/inet.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
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

/* Appends the lines of a text to words, and replaces their line ends by NUL. */
static void add_lines(const char **words, int count, char *text)
{
    char *rest = NULL;
    for (char *line = strtok_r(text, "\n", &rest); line != NULL && count < MAX_WORDS - 1;
         line = strtok_r(NULL, "\n", &rest))
        words[count++] = line;
    words[count] = NULL;
}

/* number: that of the server concerned, or NULL. */
static void pg_server_request(pg_server *server, const char *verb, const char *number)
{
    char settings[sizeof server->settings];
    const char *words[MAX_WORDS] = {number};
    snprintf(settings, sizeof settings, "%s", server->settings);
    add_lines(words, number != NULL ? 1 : 0, settings);
    servers_ask(&server->process, verb, words);
    server->port = server->process.port;
    server->folder = server->process.folder;
    snprintf(server->data, sizeof server->data, "%s/data", server->folder);
}

static const char *pg_server_number_text(pg_server *server)
{
    char *out = server->text[server->next_text++ % 4];
    snprintf(out, sizeof server->text[0], "%d", server->process.number);
    return out;
}

static pg_server *pg_server_make(const char *settings)
{
    pg_server *server = calloc(1, sizeof *server);
    if (server == NULL)
        pg_die("no memory");
    snprintf(server->settings, sizeof server->settings, "%s", settings != NULL ? settings : "");
    return server;
}

pg_server *pg_server_start(const char *settings)
{
    pg_server *server = pg_server_make(settings);
    pg_server_request(server, "postgres", NULL);
    return server;
}

pg_server *pg_server_standby(pg_server *primary)
{
    pg_server *server = pg_server_make(NULL);
    pg_server_request(server, "standby", pg_server_number_text(primary));
    return server;
}

void pg_server_promote(pg_server *server)
{
    PGconn *pg = pg_plain(server, "postgres");
    pg_sql(pg, "SELECT pg_promote(true, 30)");
    PQfinish(pg);
}

void pg_server_up(pg_server *server)
{
    pg_server_request(server, "postgres_again", pg_server_number_text(server));
}

void pg_server_down(pg_server *server, int mode)
{
    char number[16];
    snprintf(number, sizeof number, "%d", mode);
    servers_change(&server->process, "down", (const char *[]){number, NULL});
}

void pg_server_end(pg_server *server)
{
    if (server == NULL)
        return;
    servers_change(&server->process, "end", NULL);
    free(server);
}

const char *pg_url_as(pg_server *server, const char *user, const char *database, const char *query)
{
    char *out = server->text[server->next_text++ % 4];
    snprintf(out, sizeof server->text[0], "postgres://%s@127.0.0.1:%d/%s%s%s", user, server->port,
             database, query != NULL ? "?" : "", query != NULL ? query : "");
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

static const char *pg_value_query(PGconn *pg, const char *format, va_list arguments)
{
    static _Thread_local char value[1024];
    char sql[2048];
    vsnprintf(sql, sizeof sql, format, arguments);
    PGresult *result = PQexec(pg, sql);
    if (PQresultStatus(result) != PGRES_TUPLES_OK && PQresultStatus(result) != PGRES_COMMAND_OK)
        pg_die("%s: %s", sql, PQerrorMessage(pg));
    int rows = PQntuples(result);
    snprintf(value, sizeof value, "%s", rows > 0 ? PQgetvalue(result, rows - 1, 0) : "");
    PQclear(result);
    return value;
}

const char *pg_sql(PGconn *pg, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    const char *value = pg_value_query(pg, format, arguments);
    va_end(arguments);
    return value;
}

long pg_number(PGconn *pg, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    const char *value = pg_value_query(pg, format, arguments);
    va_end(arguments);
    return strtol(value, NULL, 10);
}

void pg_make_database(pg_server *server, const char *name)
{
    PGconn *pg = pg_plain(server, "postgres");
    pg_sql(pg, "CREATE DATABASE %s", name);
    PQfinish(pg);
    syncguard_error err;
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

int pg_bouncer(pg_server *server, const char *more)
{
    return pg_bouncer_as(server, "postgres", more);
}

int pg_bouncer_as(pg_server *server, const char *user, const char *more)
{
    const char *words[MAX_WORDS] = {pg_server_number_text(server), user};
    char settings[512];
    snprintf(settings, sizeof settings, "%s", more);
    add_lines(words, 2, settings);
    test_server bouncer;
    servers_ask(&bouncer, "bouncer", words);
    return bouncer.port;
}
