/*
 * A setuid program: the user who starts it chooses its environment, but must not choose its server,
 * its credentials, its proxy or its files that way. This program starts a copy of itself, once
 * unchanged (then the variables count) and once setuid, as another user.
 */
#include "fake_server.h"

#include <grp.h>
#include <sys/auxv.h>
#include <sys/stat.h>
#include <sys/wait.h>

#define OWNER 65534 /* of the setuid file */
#define CALLER 1    /* the user who starts it */

static fake_server server;
static char folder[] = "/tmp/syncguard-secure-XXXXXX";
static char ordinary[64];
static char setuid_copy[64];
static char key_log[64];
static char credentials[96];

/* ---- inside the copy ---- */

static syncguard_status secure_token_give(void *context, int64_t timeout_ms,
                                          syncguard_abort *abort_object, char *buffer, size_t size,
                                          int64_t *lifetime_ms, syncguard_error *err)
{
    (void)context;
    (void)timeout_ms;
    (void)abort_object;
    (void)err;
    (void)snprintf(buffer, size, "token");
    *lifetime_ms = 3600000;
    return SYNCGUARD_OK;
}

/* Opens a handle and sends one request. Exit code: 0 sent, with any answer; 3 opening was refused;
 * 4 not privileged. */
static int secure_inside_run(const char *how, const char *privileged)
{
    if ((getauxval(AT_SECURE) != 0) != (strcmp(privileged, "yes") == 0))
        return 4;
    syncguard_options options = SYNCGUARD_OPTIONS_INIT;
    options.timeout_ms = 2000;
    syncguard_firestore_options own = SYNCGUARD_FIRESTORE_OPTIONS_INIT;
    own.project = "test";
    syncguard_backend *backend = NULL;
    syncguard_status status;
    syncguard_error err;
    if (strcmp(how, "postgres") == 0) {
        status = syncguard_open("postgres://127.0.0.1:9/none", &options, &backend, &err);
        syncguard_close(backend);
        return status == SYNCGUARD_E_INVALID_ARGUMENT ? 3 : 0;
    }
    if (strcmp(how, "plain") != 0)
        own.endpoint = "http://127.0.0.1:9";
    if (strcmp(how, "token") == 0)
        own.token = secure_token_give;
    status = syncguard_firestore_open(&own, &options, &backend, &err);
    if (status == SYNCGUARD_E_INVALID_ARGUMENT)
        return 3;
    bool locked;
    if (status == SYNCGUARD_OK)
        (void)!syncguard_is_locked(backend, "k", NULL, &locked, &err);
    syncguard_close(backend);
    return 0;
}

/* ---- around it ---- */

/* Runs a copy with this one variable; returns its exit code. */
static int secure_copy_run(bool privileged, const char *how, const char *variable)
{
    const char *program = privileged ? setuid_copy : ordinary;
    const char *arguments[] = {program, "--inside", how, privileged ? "yes" : "no", NULL};
    const char *environment[] = {variable, NULL};
    pid_t child = fork();
    if (child == 0) {
        if (setgroups(0, NULL) == 0 && setgid(CALLER) == 0 && setuid(CALLER) == 0)
            execve(program, (char *const *)arguments, (char *const *)environment);
        _exit(126);
    }
    assert_true(child > 0);
    int status = 0;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void copy_self(const char *to, uid_t owner, mode_t mode)
{
    FILE *from = fopen("/proc/self/exe", "rb");
    FILE *out = fopen(to, "wb");
    static char block[1 << 16];
    assert_non_null(from);
    assert_non_null(out);
    size_t n;
    while ((n = fread(block, 1, sizeof block, from)) > 0)
        assert_int_equal(fwrite(block, 1, n, out), n);
    fclose(from);
    assert_int_equal(fclose(out), 0);
    assert_int_equal(chown(to, owner, owner), 0);
    assert_int_equal(chmod(to, mode), 0);
}

static int secure_setup(void **state)
{
    (void)state;
    if (geteuid() != 0)
        return 0;
    fake_server_start(&server, NULL);
    assert_non_null(mkdtemp(folder));
    assert_int_equal(chmod(folder, 0777), 0);
    snprintf(ordinary, sizeof ordinary, "%s/ordinary", folder);
    snprintf(setuid_copy, sizeof setuid_copy, "%s/setuid", folder);
    snprintf(key_log, sizeof key_log, "%s/keys", folder);
    snprintf(credentials, sizeof credentials, "%s/application_default_credentials.json", folder);
    copy_self(ordinary, OWNER, 0755);
    copy_self(setuid_copy, OWNER, 04755);
    FILE *file = fopen(credentials, "w");
    assert_non_null(file);
    fprintf(file,
            "{\"type\":\"authorized_user\",\"client_id\":\"a\",\"client_secret\":\"b\","
            "\"refresh_token\":\"c\",\"token_uri\":\"http://%s/token\"}",
            server.host);
    fclose(file);
    assert_int_equal(chmod(credentials, 0644), 0);
    return 0;
}

static int secure_teardown(void **state)
{
    (void)state;
    if (geteuid() != 0)
        return 0;
    fake_server_stop(&server);
    unlink(ordinary);
    unlink(setuid_copy);
    unlink(key_log);
    unlink(credentials);
    rmdir(folder);
    return 0;
}

static void only_root_can_try(void)
{
    if (geteuid() != 0) {
        print_message("SKIP firestore_secure: only root can make a file of another user setuid\n");
        skip();
    }
}

/* An ordinary program follows the variable to the fake server; a setuid program ignores it. */
static void leads_nowhere(const char *how, const char *variable)
{
    fake_server_forget(&server);
    assert_int_equal(secure_copy_run(false, how, variable), 0);
    assert_true(fake_server_calls(&server, NULL) > 0);
    fake_server_forget(&server);
    assert_int_equal(secure_copy_run(true, how, variable), 0);
    if (fake_server_calls(&server, NULL) > 0)
        fail_msg("a setuid program obeyed %.20s", variable);
}

static void the_environment_chooses_no_server(void **state)
{
    (void)state;
    only_root_can_try();
    char variable[160];
    snprintf(variable, sizeof variable, "FIRESTORE_EMULATOR_HOST=%s", server.host);
    leads_nowhere("plain", variable);
    snprintf(variable, sizeof variable, "GCE_METADATA_HOST=%s", server.host);
    leads_nowhere("endpoint", variable);
    snprintf(variable, sizeof variable, "GOOGLE_APPLICATION_CREDENTIALS=%s", credentials);
    leads_nowhere("endpoint", variable);
    snprintf(variable, sizeof variable, "CLOUDSDK_CONFIG=%s", folder);
    leads_nowhere("endpoint", variable);
    snprintf(variable, sizeof variable, "http_proxy=http://%s", server.host);
    leads_nowhere("token", variable);
}

/* Variables that client libraries read themselves cannot be ignored, only refused. */
static void what_libraries_read_is_refused(void **state)
{
    (void)state;
    only_root_can_try();
    char variable[160];
    snprintf(variable, sizeof variable, "SSLKEYLOGFILE=%s", key_log);
    assert_int_equal(secure_copy_run(true, "token", variable), 3);
    assert_int_not_equal(access(key_log, F_OK), 0);
#ifdef WITH_POSTGRES
    assert_int_equal(secure_copy_run(true, "postgres", "PGHOSTADDR=127.0.0.2"), 3);
    assert_int_equal(secure_copy_run(true, "postgres", "PATH=/bin"), 0);
    assert_int_equal(secure_copy_run(false, "postgres", "PGHOSTADDR=127.0.0.2"), 0);
#endif
}

int main(int argc, char **argv)
{
    if (argc == 4 && strcmp(argv[1], "--inside") == 0)
        return secure_inside_run(argv[2], argv[3]);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_environment_chooses_no_server),
        cmocka_unit_test(what_libraries_read_is_refused),
    };
    return cmocka_run_group_tests(tests, secure_setup, secure_teardown);
}
