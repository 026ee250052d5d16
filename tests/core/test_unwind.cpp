// Work that is left by unwinding: an exception, pthread_exit, a cancelled thread. The lock is
// released once, and nothing renews it any more.
#include <atomic>
#include <chrono>
#include <cstdio>
#include <pthread.h>
#include <stdexcept>
#include <string>
#include <thread>
#include <unistd.h>

#include <syncguard.h>

static int failures;

static void check(bool ok, const char *what)
{
    std::printf("%s %s\n", ok ? "ok  " : "FAIL", what);
    failures += ok ? 0 : 1;
}

static bool is_free(syncguard_backend *backend)
{
    bool locked = true;
    return syncguard_is_locked(backend, "k", nullptr, &locked, nullptr) == SYNCGUARD_OK && !locked;
}

static syncguard_status run(syncguard_backend *backend, syncguard_work_fn work, void *context)
{
    syncguard_lock_options options = SYNCGUARD_LOCK_OPTIONS_INIT;
    options.ttl_ms = 1000; // renewed for ever if it were forgotten
    options.auto_extend = true;
    return syncguard_with_lock(backend, "k", &options, work, context, nullptr, nullptr);
}

static int throw_it(void *, syncguard_lock *)
{
    throw std::runtime_error("from the work");
}

static int leave_thread(void *, syncguard_lock *)
{
    pthread_exit(nullptr);
}

static int wait_to_be_cancelled(void *started, syncguard_lock *)
{
    static_cast<std::atomic<bool> *>(started)->store(true);
    for (;;)
        usleep(1000);
    return 0;
}

struct job {
    syncguard_backend *backend;
    syncguard_work_fn work;
    std::atomic<bool> started;
};

static void *in_thread(void *argument)
{
    job *mine = static_cast<job *>(argument);
    (void)(run(mine->backend, mine->work, &mine->started) == SYNCGUARD_OK);
    return nullptr;
}

int main()
{
    syncguard_backend *backend = nullptr;
    if (syncguard_open("memory:", nullptr, &backend, nullptr) != SYNCGUARD_OK)
        return 1;

    std::string caught;
    try {
        (void)(run(backend, throw_it, nullptr) == SYNCGUARD_OK);
    } catch (const std::exception &thrown) {
        caught = thrown.what();
    }
    check(caught == "from the work", "the exception reaches the caller");
    check(is_free(backend), "an exception releases");

    pthread_t thread;
    job exits{backend, leave_thread, {false}};
    check(pthread_create(&thread, nullptr, in_thread, &exits) == 0, "a thread that ends itself");
    pthread_join(thread, nullptr);
    check(is_free(backend), "pthread_exit releases");

    job cancelled{backend, wait_to_be_cancelled, {false}};
    check(pthread_create(&thread, nullptr, in_thread, &cancelled) == 0, "a thread to be cancelled");
    while (!cancelled.started.load())
        usleep(1000);
    pthread_cancel(thread);
    void *ended = nullptr;
    pthread_join(thread, &ended);
    check(ended == PTHREAD_CANCELED, "the work can be cancelled");
    check(is_free(backend), "cancelling releases");

    syncguard_close(backend); // hangs or crashes if a handle was lost or disposed of twice
    return failures == 0 ? 0 : 1;
}
