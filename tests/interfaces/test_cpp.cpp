// The C++ interface over one store: test_cpp URL
#include <atomic>
#include <cstdio>
#include <memory>
#include <optional>
#include <poll.h>
#include <stdexcept>
#include <string>
#include <sys/resource.h>
#include <thread>
#include <type_traits>
#include <vector>

#ifdef HAVE_SQLITE
#include <sqlite3.h>
#endif

#include <syncguard.hpp>

using namespace std::chrono_literals;

static_assert(!std::is_copy_constructible_v<syncguard::backend>);
static_assert(!std::is_copy_constructible_v<syncguard::lock>);
static_assert(std::is_nothrow_move_constructible_v<syncguard::backend>);
static_assert(std::is_nothrow_move_assignable_v<syncguard::backend>);
static_assert(std::is_nothrow_move_constructible_v<syncguard::lock>);
static_assert(std::is_nothrow_move_assignable_v<syncguard::lock>);
static_assert(std::is_nothrow_destructible_v<syncguard::lock>);
static_assert(std::is_nothrow_copy_constructible_v<syncguard::error>);
static_assert(!std::is_convertible_v<std::chrono::microseconds, std::chrono::milliseconds>);

static int failures;

static void check(bool ok, const char *what)
{
    std::printf("%s %s\n", ok ? "ok  " : "FAIL", what);
    failures += ok ? 0 : 1;
}

// Whether action throws an error with this code.
template <class Action> static bool fails(syncguard::errc code, Action &&action)
{
    try {
        action();
    } catch (const syncguard::error &caught) {
        return caught.code() == code;
    }
    return false;
}

static void test_errors()
{
    bool same = true;
#define SAME(id, value, name, meaning)                                                             \
    same = same &&                                                                                 \
           syncguard::error_category().message(value) == std::string(name) + ": " + (meaning);
    SYNCGUARD_STATUS_MAP(SAME)
    check(same, "codes have the names and texts of the C library");
    std::error_code code = syncguard::errc::acquisition_timeout;
    check(code == syncguard::errc::acquisition_timeout && code == std::errc::timed_out &&
              code != std::errc::permission_denied,
          "codes compare with errc and std::errc");
    check(std::error_code(syncguard::errc::aborted) == std::errc::operation_canceled &&
              std::error_code(syncguard::errc::out_of_memory) == std::errc::not_enough_memory,
          "conditions of the standard library");
    syncguard_error details = {};
    details.code = SYNCGUARD_E_ABORTED;
    check(syncguard::error(details).what() == std::string("Aborted: the operation was cancelled"),
          "what() without a message is the text of the code");
    std::snprintf(details.message, sizeof details.message, "the request was cancelled");
    check(syncguard::error(details).what() == std::string("the request was cancelled"),
          "what() is the message alone");
}

static void test_open()
{
    using syncguard::backend;
    using namespace std::string_view_literals;
    check(fails(syncguard::errc::invalid_argument, [] { (void)backend::open("nowhere:"); }),
          "a URL of no store throws");
    check(fails(syncguard::errc::invalid_argument, [] { (void)backend::open("memory:\0x"sv); }),
          "a URL with a NUL throws");
    std::error_code code;
    backend none = backend::open("nowhere:", {}, code);
    check(code == syncguard::errc::invalid_argument && !none, "a code instead of an exception");
    backend one = backend::open("memory:", {}, code);
    check(!code && one, "success clears the code");
    check(fails(syncguard::errc::invalid_argument, [&] { (void)none.acquire("k"); }) &&
              fails(syncguard::errc::invalid_argument, [&] { (void)none.is_locked("k"); }) &&
              fails(syncguard::errc::invalid_argument, [&] { syncguard::lock().release(); }),
          "operations on an empty handle throw");
    backend other = std::move(one);
    check(other && !one, "a backend moves");
}

static void test_lock(syncguard::backend &store)
{
    std::string fence;
    {
        syncguard::lock lock = store.acquire("scope");
        fence = lock.fence();
        check(lock && lock.held() && lock.key() == "scope" && lock.id().size() == 22,
              "a lock tells key and id");
        check(fence.size() == 15 && lock.lost() == syncguard::lost_reason::no, "fence, not lost");
        check(lock.remaining() > 0s && lock.remaining() <= 30s, "time that is left");
        check(lock.expires_at() > std::chrono::system_clock::now() - 1h, "expiry");
        check(store.is_locked("scope"), "is_locked");
        check(lock.extend(60s) && lock.remaining() > 30s, "extend");
        check(!store.try_acquire("scope"), "held: no value");
        check(fails(syncguard::errc::acquisition_timeout,
                    [&] { (void)store.acquire("scope", syncguard::lock_options().wait(50ms)); }),
              "held: AcquisitionTimeout");
        std::error_code code;
        syncguard::lock none = store.acquire("scope", syncguard::lock_options().wait(0ms), code);
        check(!none && code == std::errc::timed_out, "held: a code");
    }
    check(!store.is_locked("scope"), "the end of a scope releases");
    std::optional<syncguard::lock> next = store.try_acquire("scope");
    check(next && next->fence() > fence, "the next fence is greater");
    check(next->release() && !next->release() && !next->held(), "released once");
    check(fails(syncguard::errc::invalid_argument,
                [&] { (void)store.acquire("scope", syncguard::lock_options().wait(-1ms)); }) &&
              fails(syncguard::errc::invalid_argument,
                    [&] { (void)store.acquire("scope", syncguard::lock_options().ttl(0s)); }),
          "bad durations");
}

static void test_min_hold(syncguard::backend &store)
{
    store.with_lock("hold", syncguard::lock_options().min_hold(1h), [](syncguard::lock &) {});
    check(store.is_locked("hold"), "a minimum hold goes on after the release");
}

static void test_slots(syncguard::backend &store)
{
    const syncguard::lock_options two = syncguard::lock_options().slots(2).wait(50ms);
    syncguard::lock first = store.acquire("slots", two);
    syncguard::lock second = store.acquire("slots", two);
    check(first.slot() + second.slot() == 3, "two slots");
    check(first.key() == "slots:slot:" + std::to_string(first.slot()), "the key of a slot");
    check(fails(syncguard::errc::acquisition_timeout, [&] { (void)store.acquire("slots", two); }),
          "no third one");
    check(store.acquire("slots").slot() == 0 && syncguard::lock().slot() == 0, "a plain lock");
}

static void test_moves(syncguard::backend &store)
{
    syncguard::lock first = store.acquire("first");
    syncguard::lock second = store.acquire("second");
    std::string id(second.id());
    first = std::move(second);
    check(!store.is_locked("first"), "assigning releases what was held before");
    check(store.is_locked("second") && first.id() == id && !second && !second.held(),
          "the assigned lock is held by its new handle");
    first.detach();
    check(!first && store.is_locked("second"), "a detached lock stays");
    check(store.release(id) && !store.release(id), "any holder of the id releases it");

    auto outlived = std::make_unique<syncguard::backend>(syncguard::backend::open("memory:"));
    syncguard::lock lock = outlived->acquire("k");
    outlived.reset();
    check(lock.held() && lock.release(), "a lock keeps its store open");
}

static void test_keys(syncguard::backend &store)
{
    std::string with_nul("a\0b", 3);
    std::vector<std::string> bad = {with_nul,
                                    std::string(513, 'x'),
                                    std::string(4096, 'x'),
                                    std::string(4097, 'x'),
                                    std::string(1 << 20, 'x'),
                                    ""};
    for (const std::string &key : bad) {
        std::error_code first, second, third;
        (void)store.acquire(key, {}, first);
        (void)store.try_acquire(key, {}, second);
        (void)store.is_locked(key, {}, third);
        check(first == syncguard::errc::invalid_argument && second == first && third == first &&
                  fails(syncguard::errc::invalid_argument, [&] { (void)store.acquire(key); }),
              ("InvalidArgument: a key of " + std::to_string(key.size()) + " bytes").c_str());
    }
    std::error_code code;
    check(!store.release(with_nul, {}, code) && code == syncguard::errc::invalid_argument,
          "InvalidArgument: a lock id with a NUL");
    std::string_view part("prefix-and-more", 6);
    check(store.acquire(part).key() == "prefix", "a view that is not terminated");
}

static void test_with_lock(syncguard::backend &store)
{
    int value = 0;
    int &returned = store.with_lock("work", {}, [&](syncguard::lock &lock) -> int & {
        value = lock.held() ? 7 : 0;
        return value;
    });
    check(&returned == &value && value == 7, "what the work returns is passed on as it is");
    check(!store.is_locked("work"), "released after the work");
    std::string caught;
    try {
        store.with_lock("work", syncguard::lock_options().auto_extend(),
                        [](syncguard::lock &) { throw std::runtime_error("from the work"); });
    } catch (const std::runtime_error &thrown) {
        caught = thrown.what();
    }
    check(caught == "from the work", "an exception of the work reaches the caller");
    check(!store.is_locked("work"), "an exception releases");
}

static void test_lost(syncguard::backend &store)
{
    std::atomic<int> reason{-1};
    auto options = syncguard::lock_options().ttl(6s).auto_extend().on_lost(
        [&](syncguard::lost_reason why) { reason = static_cast<int>(why); });
    syncguard::lock lock = store.acquire("lost", options);
    syncguard::lock moved = std::move(lock);
    options.on_lost(nullptr); // the lock has its own copy
    store.release(moved.id());
    for (int i = 0; i < 3000 && reason == -1; i++)
        std::this_thread::sleep_for(10ms);
    check(reason == SYNCGUARD_LOST_ABSENT && moved.lost() == syncguard::lost_reason::absent,
          "a lost lock is told, also after a move");
    check(fails(syncguard::errc::invalid_argument,
                [&] {
                    (void)store.acquire(
                        "lost", syncguard::lock_options().on_lost([](syncguard::lost_reason) {}));
                }),
          "on_lost needs auto_extend");
}

static void test_abort(syncguard::backend &store)
{
    syncguard::lock holder = store.acquire("abort");
    syncguard::abort_object abort;
    std::thread trigger([&] {
        std::this_thread::sleep_for(50ms);
        abort.trigger();
    });
    auto options = syncguard::lock_options().wait_forever().abort(abort);
    check(fails(syncguard::errc::aborted, [&] { (void)store.acquire("abort", options); }),
          "a waiting acquire is aborted");
    trigger.join();
    check(
        abort.triggered() &&
            fails(syncguard::errc::aborted,
                  [&] { (void)store.is_locked("abort", syncguard::call_options().abort(abort)); }),
        "a triggered object ends other calls, too");
}

// Without a free descriptor.
static void test_abort_create()
{
    std::error_code code;
    rlimit limit = {};
    (void)getrlimit(RLIMIT_NOFILE, &limit);
    const rlimit nothing = {0, limit.rlim_max};
    (void)setrlimit(RLIMIT_NOFILE, &nothing);
    syncguard::abort_object none = syncguard::abort_object::create(code);
    bool thrown = fails(syncguard::errc::rate_limited, [] { syncguard::abort_object(); });
    (void)setrlimit(RLIMIT_NOFILE, &limit);
    none.trigger();
    check(code == syncguard::errc::rate_limited && !none && !none.triggered(),
          "no abort object: a code, and an empty one");
    check(thrown, "no abort object: an exception");
    none = syncguard::abort_object::create(code);
    none.trigger();
    check(!code && none && none.triggered(), "an abort object of create()");
}

static void test_threads(syncguard::backend &store)
{
    int counter = 0;
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; i++)
        threads.emplace_back([&] {
            for (int j = 0; j < 25; j++)
                store.with_lock("counter", syncguard::lock_options().wait(60s),
                                [&](syncguard::lock &) {
                                    int seen = counter;
                                    std::this_thread::yield();
                                    counter = seen + 1;
                                });
        });
    for (std::thread &thread : threads)
        thread.join();
    check(counter == 100, "threads exclude each other");
}

// The next completion; waits for it.
static syncguard::completion take(syncguard::queue &queue)
{
    for (;;) {
        if (std::optional<syncguard::completion> taken = queue.next())
            return std::move(*taken);
        pollfd watched = {queue.fd(), POLLIN, 0};
        (void)poll(&watched, 1, 60000);
    }
}

static void test_queue(syncguard::backend &store)
{
    int mine = 0;
    syncguard::queue queue(store);
    check(queue && queue.fd() >= 0 && !queue.next(), "a queue without completions");
    syncguard_request first = queue.acquire("queue", syncguard::lock_options().wait(60s), &mine);
    syncguard::completion got = take(queue);
    check(got.c.kind == SYNCGUARD_COMPLETION_ACQUIRE && !got.code() && got.held.held() &&
              got.c.request == first && got.c.context == &mine && got.c.lock == nullptr,
          "a completion hands out the lock");
    syncguard_request second =
        queue.acquire("queue", syncguard::lock_options().wait_forever(), nullptr);
    check(queue.cancel(second), "a waiting request is cancelled");
    syncguard::completion cancelled = take(queue);
    check(cancelled.code() == syncguard::errc::aborted && !cancelled.held, "it still completes");
    queue.release(std::move(got.held), &mine);
    check(!got.held, "a lock that is being released is empty");
    syncguard::completion released = take(queue);
    check(released.c.kind == SYNCGUARD_COMPLETION_RELEASE && !released.code() &&
              released.c.context == &mine && !store.is_locked("queue"),
          "the release completes");
    std::error_code code;
    queue.acquire("queue", syncguard::lock_options().on_lost([](syncguard::lost_reason) {}),
                  nullptr, code);
    check(code == syncguard::errc::invalid_argument, "a queue takes no on_lost");
    queue.acquire(std::string_view("a\0b", 3), {}, nullptr, code);
    check(code == syncguard::errc::invalid_argument, "a queue takes no key with a NUL");
    queue.acquire("queue", {}, nullptr);
    { // destroyed, not released through the queue
        syncguard::completion again = take(queue);
        check(again.held.held(), "acquired again");
    }
    check(!store.is_locked("queue"), "the end of a completion releases its lock");
}

static void test_queue_open(syncguard::backend &store)
{
    std::error_code code;
    syncguard::queue none = syncguard::queue::open(store, 0, code);
    check(code == syncguard::errc::invalid_argument && !none && none.fd() == -1 && !none.next(),
          "a queue without threads: a code, and an empty queue");
    check(fails(syncguard::errc::invalid_argument, [&] { syncguard::queue(store, 0); }),
          "the same as an exception");
    none = syncguard::queue::open(syncguard::backend(), 4, code);
    check(code == syncguard::errc::invalid_argument && !none, "a queue of an empty backend");
    none.acquire("queue", {}, nullptr, code);
    check(code == syncguard::errc::invalid_argument, "a request to an empty queue");
    syncguard::queue one = syncguard::queue::open(store, 1, code);
    check(!code && one && one.fd() >= 0, "success clears the code");
    one.acquire("queue", {}, nullptr);
    check(take(one).held.held(), "a queue of open() hands out locks");
}

static void test_queue_extend(syncguard::backend &store)
{
    int mine = 0;
    syncguard::queue queue(store);
    queue.acquire("extend", syncguard::lock_options().wait(60s), nullptr);
    syncguard::lock lock = take(queue).held;
    syncguard_request request = queue.extend(lock, 90s, &mine);
    syncguard::completion got = take(queue);
    check(got.c.kind == SYNCGUARD_COMPLETION_EXTEND && got.c.status == SYNCGUARD_OK &&
              got.c.request == request && got.c.context == &mine,
          "an extend completes");
    check(got.c.lock == lock.get() && !got.held && lock.held() && lock.remaining() > 30s,
          "the lock stays with its owner, for longer");
    std::error_code code;
    check(queue.extend(lock, 0s, nullptr, code) == 0 && code == syncguard::errc::invalid_argument,
          "a bad TTL: a code");
    check(fails(syncguard::errc::invalid_argument, [&] { queue.extend(lock, 0s, nullptr); }),
          "a bad TTL: an exception");
    syncguard::lock empty;
    queue.extend(empty, 60s, nullptr, code);
    check(code == syncguard::errc::invalid_argument && !queue.next(), "an empty lock");
    store.release(lock.id());
    request = queue.extend(lock, 60s, nullptr, code);
    check(!code && request != 0, "success clears the code");
    got = take(queue);
    check(got.c.status == SYNCGUARD_ABSENT && !got.code() && !lock.held(),
          "a lock that is gone: a result");
    queue.release(std::move(lock), nullptr);
    check(take(queue).c.status == SYNCGUARD_ABSENT, "its handle is given back");
}

// The library may still call on_lost while a queue releases the lock.
static void test_queue_with_on_lost(syncguard::backend &store)
{
    syncguard::queue queue(store);
    std::atomic<bool> entered{false};
    std::atomic<bool> leave{false};
    auto token = std::make_shared<int>(0);
    auto options = syncguard::lock_options().ttl(6s).auto_extend().on_lost(
        [&entered, &leave, token](syncguard::lost_reason) {
            entered = true;
            while (!leave)
                std::this_thread::sleep_for(1ms);
        });
    {
        syncguard::lock lock = store.acquire("queue-lost", options);
        options.on_lost(nullptr);
        store.release(lock.id());
        for (int i = 0; i < 3000 && !entered; i++)
            std::this_thread::sleep_for(10ms);
        std::error_code code;
        queue.release(std::move(lock), nullptr, code);
        check(entered && code == syncguard::errc::invalid_argument && lock,
              "a queue does not take a lock whose on_lost runs");
        check(fails(syncguard::errc::invalid_argument,
                    [&] { queue.release(std::move(lock), nullptr); }) &&
                  lock && !queue.next(),
              "the same as an exception; nothing completes");
        check(token.use_count() == 2, "the function lives as long as the lock");
        leave = true;
    }
    check(token.use_count() == 1, "it ends with the lock");
    {
        syncguard::lock lock = store.acquire("queue-lost", syncguard::lock_options().auto_extend());
        queue.release(std::move(lock), nullptr);
        check(!lock && take(queue).c.status == SYNCGUARD_OK, "a lock without on_lost is taken");
    }
}

#ifdef HAVE_SQLITE
// Another writer keeps the file busy for longer than a release may take.
static void test_release_error(const std::string &url)
{
    auto store = syncguard::backend::open(url, syncguard::backend_options().dispose_timeout(200ms));
    int errors = 0;
    auto options = syncguard::lock_options();
    options.c().on_release_error = [](void *context, const syncguard_error *, const char *,
                                      const char *,
                                      const char *) { ++*static_cast<int *>(context); };
    options.c().on_release_error_context = &errors;
    sqlite3 *other = nullptr;
    {
        syncguard::lock lock = store.acquire("busy", options);
        check(sqlite3_open(url.c_str() + std::string("sqlite:").size(), &other) == SQLITE_OK &&
                  sqlite3_exec(other, "BEGIN IMMEDIATE", nullptr, nullptr, nullptr) == SQLITE_OK,
              "another writer");
    }
    check(errors == 1, "a destructor reports a failing release and does not throw");
    sqlite3_close(other);
}
#endif

int main(int argc, char **argv)
{
    const std::string url = argc > 1 ? argv[1] : "memory:";
    try {
        test_errors();
        test_open();
        auto store = syncguard::backend::open(url, syncguard::backend_options().owner("test"));
        test_lock(store);
        test_min_hold(store);
        test_slots(store);
        test_moves(store);
        test_keys(store);
        test_with_lock(store);
        test_lost(store);
        test_abort(store);
        test_abort_create();
        test_threads(store);
        test_queue(store);
        test_queue_open(store);
        test_queue_extend(store);
        test_queue_with_on_lost(store);
        store = syncguard::backend(); // closes it
#ifdef HAVE_SQLITE
        if (url.rfind("sqlite:", 0) == 0)
            test_release_error(url);
#endif
    } catch (const std::exception &thrown) {
        std::printf("FAIL unexpected: %s\n", thrown.what());
        failures++;
    }
    return failures == 0 ? 0 : 1;
}
