/*
 * TLS over our own non-blocking sockets.
 *
 * When the process ends, OpenSSL cleans up while threads of this library or of the application may
 * still use it. So every call is counted (enter and leave), and a handler of ours, which runs
 * before OpenSSL's, refuses further calls and waits for those under way, which never block. A
 * refused call fails like a broken connection. The same holds for the state that OpenSSL keeps per
 * thread: a thread of ours frees it in a counted call, because its destructor could run in parallel
 * to that cleanup.
 *
 * OpenSSL's socket BIO writes with write(2), which raises SIGPIPE; ours sends with MSG_NOSIGNAL.
 * Verification is on unless the configuration turns it off; then the session is still encrypted,
 * but the identity of the server is unknown.
 */
#include "tls.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <openssl/err.h>
#include <openssl/x509v3.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "syncguard/sys/alloc.h"
#include "syncguard/sys/fail.h"

/* Longest wait at exit for threads that are inside OpenSSL: they never block there, but a busy
 * machine may not let them run. */
#define EXIT_WAIT_MS 10000
/* How long a thread that would end during exit waits for the end of OpenSSL's cleanup. */
#define CLEANUP_WAIT_MS 1000

static atomic_int inside;
static atomic_bool exiting;
static atomic_bool initialized;
static pthread_once_t prepared = PTHREAD_ONCE_INIT;

bool sg_redis_tls_enter(void)
{
    atomic_fetch_add(&inside, 1);
    if (!atomic_load(&exiting))
        return true;
    sg_redis_tls_leave();
    return false;
}

void sg_redis_tls_leave(void)
{
    atomic_fetch_sub(&inside, 1);
}

static void tls_pause_ms(int64_t ms)
{
    (void)syncguard_wait_until(syncguard_clock_after(syncguard_clock_ns(), ms), NULL, NULL);
}

void sg_redis_tls_thread_ends(void)
{
    if (!atomic_load(&initialized))
        return;
    if (sg_redis_tls_enter()) {
        OPENSSL_thread_stop();
        sg_redis_tls_leave();
    } else {
        tls_pause_ms(CLEANUP_WAIT_MS);
    }
}

static syncguard_status tls_fail_exiting(syncguard_error *err)
{
    return syncguard_fail(err, SYNCGUARD_E_SERVICE_UNAVAILABLE, "TLS", "the process exits");
}

static void tls_exit_handler(void)
{
    atomic_store(&exiting, true);
    for (int i = 0; i < EXIT_WAIT_MS && atomic_load(&inside) > 0; i++)
        tls_pause_ms(1);
}

/* OpenSSL registers its cleanup when it is initialized: handlers run in reverse order. */
static void tls_library_init(void)
{
    (void)OPENSSL_init_ssl(0, NULL);
    (void)atexit(tls_exit_handler);
    atomic_store(&initialized, true);
}

struct sg_redis_tls {
    SSL_CTX *context;
    BIO_METHOD *method;
    const char *server_name; /* belongs to the configuration */
    bool verify;
};

/* One call of OpenSSL continues as long as it can read messages without data, such as HelloRequest
 * or KeyUpdate. After this many reads it is told that there is nothing to read, so that its caller
 * can check the limits. */
#define MOST_READS 64

/* What a session reads from and writes to. */
typedef struct transport {
    int fd;
    unsigned reads;
} transport;

static int bio_write(BIO *bio, const char *data, int length)
{
    const transport *t = BIO_get_data(bio);
    BIO_clear_retry_flags(bio);
    ssize_t n = send(t->fd, data, (size_t)length, MSG_NOSIGNAL);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
        BIO_set_retry_write(bio);
    return (int)n;
}

static int bio_read(BIO *bio, char *data, int size)
{
    transport *t = BIO_get_data(bio);
    BIO_clear_retry_flags(bio);
    if (++t->reads % MOST_READS == 0) {
        BIO_set_retry_read(bio);
        return -1;
    }
    ssize_t n = recv(t->fd, data, (size_t)size, 0);
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR))
        BIO_set_retry_read(bio);
    return (int)n;
}

static long bio_ctrl(BIO *bio, int command, long number, void *pointer)
{
    (void)bio;
    (void)number;
    (void)pointer;
    return command == BIO_CTRL_FLUSH ? 1 : 0;
}

static int bio_destroy(BIO *bio)
{
    syncguard_free(BIO_get_data(bio));
    return 1;
}

static BIO_METHOD *bio_method_create(void)
{
    BIO_METHOD *method = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "syncguard");
    if (method == NULL)
        return NULL;
    if (BIO_meth_set_write(method, bio_write) != 1 || BIO_meth_set_read(method, bio_read) != 1 ||
        BIO_meth_set_ctrl(method, bio_ctrl) != 1 ||
        BIO_meth_set_destroy(method, bio_destroy) != 1) {
        BIO_meth_free(method);
        return NULL;
    }
    return method;
}

/* OpenSSL opens files in a blocking way: with a pipe, opening a handle would never end. */
static syncguard_status tls_check_file(const char *option, const char *path, syncguard_error *err)
{
    struct stat about;
    if (path == NULL)
        return SYNCGUARD_OK;
    if (stat(path, &about) != 0 || faccessat(AT_FDCWD, path, R_OK, AT_EACCESS) != 0)
        return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL, "%s cannot be read: %s",
                              option, syncguard_errno_text(errno));
    if (!S_ISREG(about.st_mode))
        return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL,
                              "%s cannot be read: it is not a regular file", option);
    return SYNCGUARD_OK;
}

static syncguard_status tls_check_all_files(const sg_redis_config *config, syncguard_error *err)
{
    syncguard_status status = tls_check_file("tls_ca", config->tls_ca, err);
    if (status == SYNCGUARD_OK)
        status = tls_check_file("tls_cert", config->tls_cert, err);
    return status == SYNCGUARD_OK ? tls_check_file("tls_key", config->tls_key, err) : status;
}

/* Without this, OpenSSL would ask at the terminal, and opening a handle would wait for that. */
static int tls_refuse_password(char *buffer, int size, int writing, void *context)
{
    (void)buffer;
    (void)size;
    (void)writing;
    (void)context;
    return -1;
}

static syncguard_status tls_load_files(const sg_redis_config *config, SSL_CTX *context,
                                       syncguard_error *err)
{
    syncguard_status status = tls_check_all_files(config, err);
    if (status != SYNCGUARD_OK)
        return status;
    if (config->tls_ca != NULL) {
        if (SSL_CTX_load_verify_locations(context, config->tls_ca, NULL) != 1)
            return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL,
                                  "tls_ca contains no certificate");
    } else if (SSL_CTX_set_default_verify_paths(context) != 1) {
        return syncguard_fail(err, SYNCGUARD_E_INTERNAL, NULL, "no certificate store");
    }
    if (config->tls_cert != NULL) {
        SSL_CTX_set_default_passwd_cb(context, tls_refuse_password);
        const char *key = config->tls_key != NULL ? config->tls_key : config->tls_cert;
        if (SSL_CTX_use_certificate_chain_file(context, config->tls_cert) != 1)
            return syncguard_fail(err, SYNCGUARD_E_INVALID_ARGUMENT, NULL,
                                  "tls_cert contains no certificate");
        if (SSL_CTX_use_PrivateKey_file(context, key, SSL_FILETYPE_PEM) != 1 ||
            SSL_CTX_check_private_key(context) != 1)
            return syncguard_fail(
                err, SYNCGUARD_E_INVALID_ARGUMENT, NULL,
                "tls_key contains no key, is encrypted, or does not fit tls_cert");
    }
    return SYNCGUARD_OK;
}

syncguard_status sg_redis_tls_create(const sg_redis_config *config, sg_redis_tls **out,
                                     syncguard_error *err)
{
    sg_redis_tls *tls = syncguard_calloc(1, sizeof *tls);
    if (tls == NULL)
        return syncguard_fail_memory(err);
    (void)pthread_once(&prepared, tls_library_init);
    if (!sg_redis_tls_enter()) {
        syncguard_free(tls);
        return tls_fail_exiting(err);
    }
    tls->server_name = config->tls_server_name;
    tls->verify = config->tls_verify;
    tls->context = SSL_CTX_new(TLS_client_method());
    tls->method = bio_method_create();
    syncguard_status status = SYNCGUARD_OK;
    if (tls->context == NULL || tls->method == NULL) {
        status = syncguard_fail_memory(err);
        goto done;
    }
    SSL_CTX_set_min_proto_version(tls->context, TLS1_2_VERSION);
    SSL_CTX_set_mode(tls->context,
                     SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    SSL_CTX_set_verify(tls->context, tls->verify ? SSL_VERIFY_PEER : SSL_VERIFY_NONE, NULL);
    status = tls_load_files(config, tls->context, err);
    if (status != SYNCGUARD_OK)
        goto done;
    *out = tls;
    tls = NULL;
done:
    ERR_clear_error();
    sg_redis_tls_leave();
    sg_redis_tls_free(tls);
    return status;
}

void sg_redis_tls_free(sg_redis_tls *tls)
{
    if (tls == NULL)
        return;
    if (sg_redis_tls_enter()) {
        SSL_CTX_free(tls->context);
        BIO_meth_free(tls->method);
        sg_redis_tls_leave();
    }
    syncguard_free(tls);
}

/* Sets the name or address that the certificate must contain. */
static bool tls_session_expect_peer(sg_redis_tls *tls, SSL *ssl, const char *host)
{
    unsigned char address[16];
    const char *name = tls->server_name != NULL ? tls->server_name : host;
    if (inet_pton(AF_INET, name, address) == 1 || inet_pton(AF_INET6, name, address) == 1)
        return !tls->verify || X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(ssl), name) == 1;
    if (SSL_set_tlsext_host_name(ssl, name) != 1)
        return false;
    return !tls->verify || SSL_set1_host(ssl, name) == 1;
}

static syncguard_status tls_session_create(sg_redis_tls *tls, int fd, const char *host, SSL **out,
                                           syncguard_error *err)
{
    SSL *ssl = SSL_new(tls->context);
    BIO *bio = BIO_new(tls->method);
    transport *t = syncguard_calloc(1, sizeof *t);
    bool memory = ssl == NULL || bio == NULL || t == NULL;
    if (memory || !tls_session_expect_peer(tls, ssl, host)) {
        SSL_free(ssl);
        BIO_free(bio);
        syncguard_free(t);
        ERR_clear_error();
        return memory ? syncguard_fail_memory(err)
                      : syncguard_fail(err, SYNCGUARD_E_SERVICE_UNAVAILABLE, "TLS",
                                       "the server's name cannot be checked");
    }
    t->fd = fd;
    BIO_set_data(bio, t);
    BIO_set_init(bio, 1);
    SSL_set_bio(ssl, bio, bio);
    SSL_set_connect_state(ssl);
    *out = ssl;
    return SYNCGUARD_OK;
}

syncguard_status sg_redis_tls_session(sg_redis_tls *tls, int fd, const char *host, SSL **out,
                                      syncguard_error *err)
{
    if (!sg_redis_tls_enter())
        return tls_fail_exiting(err);
    syncguard_status status = tls_session_create(tls, fd, host, out, err);
    sg_redis_tls_leave();
    return status;
}

/* What the user can do about a certificate that was not accepted. */
static const char *tls_verdict_remedy(long verdict)
{
    switch (verdict) {
    case X509_V_ERR_HOSTNAME_MISMATCH:
    case X509_V_ERR_IP_ADDRESS_MISMATCH:
        return ": it is for another name than that of the host; tls_server_name sets the name";
    case X509_V_ERR_DEPTH_ZERO_SELF_SIGNED_CERT:
    case X509_V_ERR_SELF_SIGNED_CERT_IN_CHAIN:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT:
    case X509_V_ERR_UNABLE_TO_GET_ISSUER_CERT_LOCALLY:
    case X509_V_ERR_UNABLE_TO_VERIFY_LEAF_SIGNATURE:
        return ": tls_ca names the file of the CA that signed it";
    default:
        return "";
    }
}

/* One step of the handshake. OK: done. ABSENT: *events must come first. */
static syncguard_status tls_handshake_step(SSL *ssl, short *events, syncguard_error *err)
{
    ERR_clear_error();
    int result = SSL_do_handshake(ssl);
    if (result == 1)
        return SYNCGUARD_OK;
    int why = SSL_get_error(ssl, result);
    *events = why == SSL_ERROR_WANT_READ ? POLLIN : POLLOUT;
    if (why == SSL_ERROR_WANT_READ || why == SSL_ERROR_WANT_WRITE)
        return SYNCGUARD_ABSENT;
    int reason = ERR_GET_REASON(ERR_peek_error());
    ERR_clear_error();
    long verdict = SSL_get_verify_result(ssl);
    if (verdict != X509_V_OK && SSL_get_verify_mode(ssl) != SSL_VERIFY_NONE)
        return syncguard_fail(err, SYNCGUARD_E_AUTH_FAILED, "TLS",
                              "the server's certificate is not accepted (%s)%s",
                              X509_verify_cert_error_string(verdict), tls_verdict_remedy(verdict));
    if (reason == SSL_R_WRONG_VERSION_NUMBER || reason == SSL_R_UNEXPECTED_MESSAGE)
        return syncguard_fail(err, SYNCGUARD_E_SERVICE_UNAVAILABLE, "TLS",
                              "the server answers without TLS on this port");
    return syncguard_fail(err, SYNCGUARD_E_SERVICE_UNAVAILABLE, "TLS", "TLS handshake failed");
}

syncguard_status sg_redis_tls_handshake(SSL *ssl, int fd, const syncguard_limits *limits,
                                        syncguard_error *err)
{
    for (;;) {
        struct pollfd fds = {fd, 0, 0};
        if (!sg_redis_tls_enter())
            return tls_fail_exiting(err);
        syncguard_status status = tls_handshake_step(ssl, &fds.events, err);
        sg_redis_tls_leave();
        if (status == SYNCGUARD_ABSENT)
            status = syncguard_wait_fds(&fds, 1, limits, err);
        else
            return status;
        if (status != SYNCGUARD_OK)
            return status;
    }
}
