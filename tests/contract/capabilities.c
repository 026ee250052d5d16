/* The expected capabilities of each store. The suite relies on a store's capabilities, so a wrong
 * one would disable tests. Opening a backend connects to nothing. */
#include "contract.h"

#define SERVER SYNCGUARD_TIME_SERVER
#define CLIENT SYNCGUARD_TIME_CLIENT

static const struct {
    const char *url;
    syncguard_capabilities wanted;
} stores[] = {
    /* name, fencing, clock; wakes, shared, keeps, child */
    {"memory:", {"memory", true, SERVER, true, false, true, true}},
    {"sqlite:capabilities.db", {"sqlite", true, SERVER, true, true, true, false}},
    {"redis://127.0.0.1:1", {"redis", true, SERVER, true, true, false, true}},
    {"redis+cluster://127.0.0.1:1", {"redis", true, SERVER, true, true, false, true}},
    {"redis://127.0.0.1:1?no_tracking=1", {"redis", true, SERVER, false, true, false, true}},
    {"postgres://127.0.0.1:1/db", {"postgres", true, SERVER, true, true, true, true}},
    {"postgres://127.0.0.1:1/db?listen=0", {"postgres", true, SERVER, false, true, true, true}},
    {"postgres://127.0.0.1:1/db?pooler=1", {"postgres", true, SERVER, false, true, true, true}},
    {"firestore://p", {"firestore", true, CLIENT, false, true, true, true}},
    {"dir:capabilities.dir", {"dir", true, SERVER, false, true, true, true}},
};

static void each_store_says_what_it_can_do(void **state)
{
    (void)state;
    setenv("FIRESTORE_EMULATOR_HOST", "127.0.0.1:1", 1); /* needs no credentials */
    for (size_t i = 0; i < sizeof stores / sizeof stores[0]; i++) {
        const syncguard_capabilities *wanted = &stores[i].wanted;
        const syncguard_capabilities *got;
        syncguard_backend *backend = NULL;
        syncguard_error why;
        print_message("%s\n", stores[i].url);
        if (syncguard_open(stores[i].url, NULL, &backend, &why) != SYNCGUARD_OK)
            fail_msg("%s", why.message);
        got = syncguard_capabilities_get(backend);
        assert_string_equal(got->backend, wanted->backend);
        assert_int_equal(got->supports_fencing, wanted->supports_fencing);
        assert_int_equal(got->time_authority, wanted->time_authority);
        assert_int_equal(got->wakes_waiters, wanted->wakes_waiters);
        assert_int_equal(got->is_shared, wanted->is_shared);
        assert_int_equal(got->keeps_expired, wanted->keeps_expired);
        assert_int_equal(got->works_in_child, wanted->works_in_child);
        syncguard_close(backend);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(each_store_says_what_it_can_do)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
