/*
 * Locks in a libuv program: each job waits for its key, works, and gives the key back.
 *
 *     ./libuv_jobs URL KEY...
 *
 * Jobs with the same key run one after the other, all others side by side, in one thread.
 */
#include <stdio.h>
#include <stdlib.h>

#include <syncguard.h>
#include <uv.h>

typedef struct program {
    uv_loop_t *loop;
    uv_poll_t readable;
    syncguard_queue *queue;
    int open; /* jobs */
    int failed;
} program;

typedef struct job {
    program *all;
    const char *key;
    uv_timer_t work;
    syncguard_lock *lock;
} job;

static void finish(job *j)
{
    if (--j->all->open == 0)
        uv_close((uv_handle_t *)&j->all->readable, NULL);
    uv_close((uv_handle_t *)&j->work, NULL);
}

static void release(job *j)
{
    syncguard_error err;
    if (j->lock != NULL &&
        syncguard_lock_release_async(j->all->queue, j->lock, NULL, j, NULL, &err) == SYNCGUARD_OK)
        j->lock = NULL;
}

static void worked(uv_timer_t *work)
{
    job *j = work->data;
    printf("%s: done\n", j->key);
    release(j);
}

static void completed(const syncguard_completion *done)
{
    job *j = done->context;
    switch (done->kind) {
    case SYNCGUARD_COMPLETION_ACQUIRE:
        if (done->status != SYNCGUARD_OK) {
            fprintf(stderr, "%s: %s\n", j->key, done->error.message);
            j->all->failed++;
            finish(j);
            return;
        }
        j->lock = done->lock;
        printf("%s: granted %s\n", j->key, syncguard_lock_fence(j->lock));
        uv_timer_start(&j->work, worked, 100, 0); /* the work */
        return;
    case SYNCGUARD_COMPLETION_LOST:
        fprintf(stderr, "%s: lost (%s)\n", j->key, syncguard_lost_reason_name(done->lost));
        uv_timer_stop(&j->work);
        j->all->failed++;
        release(j);
        return;
    case SYNCGUARD_COMPLETION_RELEASE:
        finish(j);
        return;
    case SYNCGUARD_COMPLETION_EXTEND: /* not used here */
        return;
    }
}

static void readable(uv_poll_t *handle, int status, int events)
{
    program *all = handle->data;
    syncguard_completion done;
    (void)status;
    (void)events;
    while (syncguard_queue_next(all->queue, &done))
        completed(&done);
}

static void start(program *all, job *j)
{
    syncguard_error err;
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_WAIT_MS(60000);
    options.auto_extend = true;
    uv_timer_init(all->loop, &j->work);
    j->work.data = j;
    j->all = all;
    all->open++;
    if (syncguard_lock_acquire_async(all->queue, j->key, &options, j, NULL, &err) != SYNCGUARD_OK) {
        fprintf(stderr, "%s: %s\n", j->key, err.message);
        all->failed++;
        finish(j);
    }
}

int main(int argc, char **argv)
{
    program all = {.loop = uv_default_loop()};
    syncguard_backend *backend = NULL;
    syncguard_error err;
    int count = argc - 2;
    job *jobs = count > 0 ? calloc((size_t)count, sizeof *jobs) : NULL;
    if (jobs == NULL) {
        fprintf(stderr, "usage: libuv_jobs URL KEY...\n");
        return 1;
    }
    if (syncguard_open(argv[1], NULL, &backend, &err) != SYNCGUARD_OK ||
        syncguard_queue_open(backend, NULL, &all.queue, &err) != SYNCGUARD_OK) {
        fprintf(stderr, "%s: %s\n", syncguard_status_name(err.code), err.message);
        syncguard_close(backend);
        free(jobs);
        return 1;
    }
    uv_poll_init(all.loop, &all.readable, syncguard_queue_fd(all.queue));
    all.readable.data = &all;
    uv_poll_start(&all.readable, UV_READABLE, readable);
    for (int i = 0; i < count; i++) {
        jobs[i].key = argv[2 + i];
        start(&all, &jobs[i]);
    }
    uv_run(all.loop, UV_RUN_DEFAULT);
    uv_loop_close(all.loop);
    syncguard_queue_close(all.queue);
    syncguard_close(backend);
    free(jobs);
    return all.failed == 0 ? 0 : 1;
}
