/* See support.h. */
#include "support.h"

fake_server server;
syncguard_error err;

int start_server(void **state)
{
    (void)state;
    fake_server_start(&server, NULL);
    return 0;
}

int stop_server(void **state)
{
    (void)state;
    fake_server_stop(&server);
    return 0;
}

int reset_server(void **state)
{
    (void)state;
    fake_server_reset(&server);
    return 0;
}

size_t calls_since(void)
{
    size_t count = fake_server_calls(&server, NULL);
    fake_server_forget(&server);
    return count;
}

bool stored(const char *name)
{
    json_t *document = fake_server_document(&server, name);
    bool there = document != NULL;
    json_decref(document);
    return there;
}

void server_is_ahead_by(int ms)
{
    char text[64];
    snprintf(text, sizeof text, "{\"read_time_ms\":%d}", ms);
    json_decref(fake_server_control(&server, "PUT", "settings", text));
}

void findings_note(void *context, const syncguard_finding *finding)
{
    findings *f = context;
    size_t length = strlen(f->text);
    if (finding->severity > f->worst)
        f->worst = finding->severity;
    snprintf(f->text + length, sizeof f->text - length, "%d %s: %s\n", (int)finding->severity,
             finding->topic, finding->text);
}
