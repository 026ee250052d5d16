/* URLs: the common parser, and the options of a store that is opened without asking a server. */
#include "syncguard/sys/url.h"
#include "fuzz.h"
#include "syncguard/sys/backend.h"

extern const syncguard_module syncguard_module_redis;

static void read_common(const char *text)
{
    syncguard_url *url = NULL;
    syncguard_error err;
    static const char *const words[] = {"full", "normal", NULL};
    if (syncguard_url_parse(text, &url, &err) != SYNCGUARD_OK) {
        FUZZ_CHECK(url == NULL);
        return;
    }
    FUZZ_CHECK(url->scheme != NULL && url->path != NULL);
    for (size_t i = 0; i < url->option_count; i++)
        FUZZ_CHECK(url->options[i].name != NULL && url->options[i].value != NULL);
    syncguard_options options = SYNCGUARD_OPTIONS_INIT;
    (void)syncguard_url_common(url, &options, &err);
    int64_t number = 0;
    if (syncguard_url_int(url, "number", 1, 1000, &number, &err) == SYNCGUARD_OK)
        FUZZ_CHECK(number >= 0 && number <= 1000);
    bool flag = false;
    (void)syncguard_url_bool(url, "flag", &flag, &err);
    int index = 0;
    if (syncguard_url_choice(url, "durability", words, &index, &err) == SYNCGUARD_OK)
        FUZZ_CHECK(index == 0 || index == 1);
    (void)syncguard_url_text(url, "word");
    (void)syncguard_url_done(url, &err);
    syncguard_url_free(url);
}

static void open_redis(const char *text)
{
    syncguard_backend *backend = NULL;
    syncguard_error err;
    /* TLS URLs are left out: their certificates are files, which this target does not test. */
    if (strncmp(text, "redis", 5) != 0 || strncmp(text, "rediss", 6) == 0)
        return;
    if (syncguard_module_redis.open(text, NULL, &backend, &err) == SYNCGUARD_OK)
        syncguard_close(backend);
    else
        FUZZ_CHECK(backend == NULL);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *text = fuzz_text(data, size);
    read_common(text);
    open_redis(text);
    free(text);
    return 0;
}
