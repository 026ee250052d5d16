/* Findings that several stores report with the same text. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

#include "syncguard/sys/findings.h"

/* The tolerance of expiry; in durations, too, a smaller difference is not noticed. */
#define CLOCK_WARN_US (1000 * 1000)
/* Half the tolerance of expiry: locks end early only if the clocks of servers differ by more. */
#define REPLICA_WARN_US (500 * 1000)

void syncguard_report_fine(const syncguard_findings *to, const char *topic, const char *text)
{
    syncguard_report(to, SYNCGUARD_FINE, topic, text, "", "");
}

void syncguard_report(const syncguard_findings *to, syncguard_severity severity, const char *topic,
                      const char *text, const char *why, const char *change)
{
    const syncguard_finding finding = {severity, topic, text, why, change};
    to->fn(to->context, &finding);
}

void syncguard_report_clock(const syncguard_findings *to, int64_t offset_us, int64_t error_us)
{
    int64_t certain = (offset_us < 0 ? -offset_us : offset_us) - error_us;
    char text[120];
    snprintf(text, sizeof text, "offset %+.1fms, error bound %.1fms", (double)offset_us / 1000.0,
             (double)error_us / 1000.0);
    if (certain < CLOCK_WARN_US)
        syncguard_report_fine(to, "clock", text);
    else
        syncguard_report(to, SYNCGUARD_WARN, "clock", text,
                         "the clock of the store differs from that of this machine: status shows "
                         "times of day of the store's clock; if it is the store's clock "
                         "that is wrong, locks end early when it is set forward, or when another "
                         "server takes over",
                         "run NTP on both machines, and on all servers of the store");
}

void syncguard_report_replica_clock(const syncguard_findings *to, const char *replica,
                                    int64_t ahead_us, int64_t error_us)
{
    int64_t certain = (ahead_us < 0 ? -ahead_us : ahead_us) - error_us;
    char text[400];
    snprintf(text, sizeof text, "%s: offset to the primary %+.1fms, error bound %.1fms", replica,
             (double)ahead_us / 1000.0, (double)error_us / 1000.0);
    if (certain < REPLICA_WARN_US)
        syncguard_report_fine(to, "replica_clock", text);
    else if (ahead_us > 0)
        syncguard_report(to, SYNCGUARD_WARN, "replica_clock", text,
                         "the clock of this replica is ahead: after its promotion locks end early "
                         "by as much, less a second, while their holders still work, so that there "
                         "are two holders",
                         "run NTP on all servers of the store");
    else
        syncguard_report(to, SYNCGUARD_WARN, "replica_clock", text,
                         "the clock of this replica is behind: after its promotion the locks of "
                         "dead holders stay longer by as much; if the primary's clock is the wrong "
                         "one, locks end early when it is corrected",
                         "run NTP on all servers of the store");
}

void syncguard_report_no_replica_clock(const syncguard_findings *to, const char *replica,
                                       const char *reason)
{
    char text[400];
    snprintf(text, sizeof text, "%s: its clock cannot be read: %s", replica, reason);
    syncguard_report_fine(to, "replica_clock", text);
}

/* 127.0.0.0/8. A name such as "127.example.com" may belong to any machine. */
static bool host_is_loopback_v4(const char *host)
{
    struct in_addr address;
    return inet_pton(AF_INET, host, &address) == 1 &&
           ntohl(address.s_addr) >> IN_CLASSA_NSHIFT == IN_LOOPBACKNET;
}

bool syncguard_host_is_local(const char *host)
{
    return host == NULL || *host == '\0' || *host == '/' || *host == '@' ||
           strcasecmp(host, "localhost") == 0 || host_is_loopback_v4(host) ||
           strcmp(host, "::1") == 0 || strcmp(host, "[::1]") == 0;
}

void syncguard_report_tls(const syncguard_findings *to, const char *host, bool encrypted,
                          bool verified, const char *change)
{
    if (encrypted && verified)
        syncguard_report_fine(to, "tls", "on, and the certificate of the server is verified");
    else if (syncguard_host_is_local(host))
        syncguard_report_fine(to, "tls", "the server is on this machine");
    else if (encrypted)
        syncguard_report(to, SYNCGUARD_WARN, "tls",
                         "on, but the certificate of the server is not verified",
                         "whoever can redirect the connection can pose as the store, learn the "
                         "password, and free and forge locks",
                         change);
    else
        syncguard_report(to, SYNCGUARD_WARN, "tls", "off, and the server is on another machine",
                         "whoever sees the traffic learns the password and the lock ids, and can "
                         "free and forge locks",
                         change);
}
