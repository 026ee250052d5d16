/*
 * Connects to one of the hosts, and determines the kind of session: direct or behind a pooler.
 */
#include <fcntl.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "connection.h"
#include "errors.h"
#include "result.h"
#include "round_trip.h"
#include "syncguard/sys/wait.h"

/* Parameters of the target, host, hostaddr, port and the terminator. */
#define MAX_PARAMETERS 96

/*
 * Without a receiver libpq prints notices to stderr. Two kinds matter. A COMMIT whose wait for a
 * synchronous standby is cancelled succeeds with a warning; its code is the general one, so every
 * warning counts. And the server announces the end of an idle session with a notice.
 */
static void pg_connection_receive_notice(void *context, const PGresult *notice)
{
    sg_pg_connection *connection = context;
    const char *severity = PQresultErrorField(notice, PG_DIAG_SEVERITY_NONLOCALIZED);
    if (severity != NULL && strcmp(severity, "WARNING") == 0)
        connection->warned = true;
    if (severity != NULL && strcmp(severity, "FATAL") == 0)
        connection->ended = true;
}

static PGconn *pg_connection_begin(sg_pg_connection *connection, const sg_pg_target *target,
                                   int host)
{
    const char *keywords[MAX_PARAMETERS];
    const char *values[MAX_PARAMETERS];
    size_t count = 0;
    for (; target->keywords[count] != NULL && count < MAX_PARAMETERS - 4; count++) {
        keywords[count] = target->keywords[count];
        values[count] = target->values[count];
    }
    keywords[count] = "host";
    values[count++] = target->hosts[host];
    keywords[count] = "hostaddr";
    values[count++] = target->hostaddrs[host];
    keywords[count] = "port";
    values[count++] = target->ports[host];
    keywords[count] = NULL;
    values[count] = NULL;
    PGconn *pg = PQconnectStartParams(keywords, values, 0);
    if (pg == NULL)
        return NULL;
    PQsetNoticeReceiver(pg, pg_connection_receive_notice, connection);
    PQsetErrorVerbosity(pg, PQERRORS_SQLSTATE);
    return pg;
}

/* How many further addresses a host may have. Called only if the first one does not answer. */
static int pg_host_other_address_count(const char *host)
{
    struct addrinfo hints = {.ai_socktype = SOCK_STREAM};
    struct addrinfo *all = NULL;
    if (host == NULL || host[0] == '/' || host[0] == '@' ||
        getaddrinfo(host, NULL, &hints, &all) != 0)
        return 0;
    int count = 0;
    for (const struct addrinfo *each = all; each != NULL; each = each->ai_next)
        count++;
    freeaddrinfo(all);
    return count - 1;
}

/*
 * Waits for the socket of the attempt. libpq tries the next address of a name only if one refuses.
 * An address that never answers must not use up all of the time, so its socket is shut down after
 * half of the remaining time, which libpq treats as a refusal.
 */
static syncguard_status pg_connection_wait_socket(PGconn *pg, short events, const char *host,
                                                  int *others, const syncguard_limits *limits,
                                                  syncguard_error *err)
{
    struct pollfd fd = {PQsocket(pg), events, 0};
    syncguard_limits half =
        syncguard_limits_until(limits, syncguard_clock_ns() + syncguard_limits_left_ns(limits) / 2);
    if (*others == 0 || PQstatus(pg) != CONNECTION_STARTED)
        return syncguard_wait_fds(&fd, 1, limits, err);
    syncguard_status status = syncguard_wait_fds(&fd, 1, &half, err);
    if (status == SYNCGUARD_OK)
        return status;
    if (*others < 0)
        *others = pg_host_other_address_count(host);
    if (*others == 0)
        return syncguard_wait_fds(&fd, 1, limits, err);
    (*others)--;
    shutdown(fd.fd, SHUT_RDWR);
    return SYNCGUARD_OK;
}

/* Drives one attempt to its end. host: the name to connect to; NULL if it has only one address. */
static syncguard_status pg_connection_complete(PGconn *pg, const char *host, bool service,
                                               const syncguard_limits *limits, syncguard_error *err)
{
    int others = host != NULL ? -1 : 0; /* -1: not counted yet */
    if (PQstatus(pg) == CONNECTION_BAD)
        return sg_pg_fail_connect(err, pg, service);
    PostgresPollingStatusType next = PGRES_POLLING_WRITING;
    while (next != PGRES_POLLING_OK) {
        syncguard_status status = pg_connection_wait_socket(
            pg, next == PGRES_POLLING_READING ? POLLIN : POLLOUT, host, &others, limits, err);
        if (status != SYNCGUARD_OK)
            return syncguard_fail(err, SYNCGUARD_E_NETWORK_TIMEOUT, NULL,
                                  "connecting to the server took too long");
        next = PQconnectPoll(pg);
        if (next == PGRES_POLLING_FAILED)
            return sg_pg_fail_connect(err, pg, service);
    }
    if (PQsetnonblocking(pg, 1) != 0 || PQenterPipelineMode(pg) == 0)
        return syncguard_fail(err, SYNCGUARD_E_INTERNAL, NULL, "libpq refuses pipeline mode");
    return SYNCGUARD_OK;
}

/*
 * Asks the session for its process id and settings. Behind a pooler this is the process id of one
 * of the pooler's sessions, while libpq has one that the pooler made up. A pooler may also drop the
 * settings that the connection starts with.
 */
static syncguard_status pg_connection_identify(sg_pg_connection *connection,
                                               const sg_pg_time_limits *session,
                                               const syncguard_limits *limits, syncguard_error *err)
{
    static const char sql[] =
        "SELECT pg_catalog.pg_backend_pid(), "
        "pg_catalog.current_setting('lock_timeout')::interval = $1::interval "
        "AND pg_catalog.current_setting('statement_timeout')::interval = $2::interval "
        "AND pg_catalog.current_setting('client_min_messages') = 'warning'";
    char lock[32];
    char statement[32];
    const char *values[] = {lock, statement};
    snprintf(lock, sizeof lock, "%lld ms", (long long)session->lock_ms);
    snprintf(statement, sizeof statement, "%lld ms", (long long)session->statement_ms);
    PGresult *result = NULL;
    syncguard_status status = sg_pg_query(connection, sql, 2, values, limits, &result, err);
    if (status != SYNCGUARD_OK)
        return status;
    int64_t pid = 0;
    connection->direct = sg_pg_int64(result, 0, 0, &pid) && pid == PQbackendPID(connection->pg);
    connection->limited = connection->direct && session->lock_ms > 0 && sg_pg_bool(result, 0, 1);
    PQclear(result);
    return SYNCGUARD_OK;
}

/* The deadline for one host, if `left` hosts must still be tried after it. */
static int64_t pg_host_deadline(const sg_pg_target *target, int left, int64_t deadline_ns)
{
    int64_t now = syncguard_clock_ns();
    int64_t share = (deadline_ns - now) / (left + 1);
    if (target->connect_timeout_ms > 0)
        share = target->connect_timeout_ms * SYNCGUARD_NS_PER_MS;
    return now + share < deadline_ns ? now + share : deadline_ns;
}

syncguard_status sg_pg_connection_open(sg_pg_connection *connection, const sg_pg_target *target,
                                       int *host, int64_t deadline_ns, syncguard_error *err)
{
    syncguard_status status = SYNCGUARD_OK;
    int first = *host;
    for (int i = 0; i < target->host_count; i++) {
        int at = (first + i) % target->host_count;
        syncguard_limits limits = {
            pg_host_deadline(target, target->host_count - 1 - i, deadline_ns), NULL};
        connection->pg = pg_connection_begin(connection, target, at);
        if (connection->pg == NULL)
            return syncguard_fail_memory(err);
        status = pg_connection_complete(connection->pg,
                                        target->hostaddrs[at] != NULL ? NULL : target->hosts[at],
                                        target->service, &limits, err);
        if (status == SYNCGUARD_OK)
            status = pg_connection_identify(connection, &target->session, &limits, err);
        if (status == SYNCGUARD_OK) {
            connection->socket = syncguard_fd_identify(PQsocket(connection->pg));
            *host = at;
            return status;
        }
        PQfinish(connection->pg);
        connection->pg = NULL;
    }
    return status;
}

bool sg_pg_connection_is_open(const sg_pg_connection *connection)
{
    int fd = PQsocket(connection->pg);
    return fd < 0 || !connection->socket.known || syncguard_fd_same(fd, connection->socket);
}

bool sg_pg_connection_cut_off(const sg_pg_connection *connection)
{
    int fd = PQsocket(connection->pg);
    if (!syncguard_fd_same(fd, connection->socket))
        return false;
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) != 0) {
        close(fd);
        return false;
    }
    dup3(pair[0], fd, O_CLOEXEC);
    close(pair[0]);
    close(pair[1]);
    return true;
}
