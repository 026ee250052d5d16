"""One store, SYNCGUARD_TEST_URL: the behaviour that a program in one process sees."""

import os
import pickle
import threading
import time
import unittest
from datetime import timedelta

import syncguard

URL = os.environ.get("SYNCGUARD_TEST_URL", "memory:")


class StoreTest(unittest.TestCase):
    def setUp(self):
        self.store = syncguard.open(URL, owner="test", timeout=20)
        self.addCleanup(self.store.close)
        self.key = "python/" + self.id()

    def test_with_releases(self):
        with self.store.acquire(self.key) as lock:
            self.assertTrue(lock.held)
            self.assertEqual((lock.key, len(lock.id), len(lock.fence)), (self.key, 22, 15))
            self.assertIsNone(lock.lost)
            self.assertTrue(0 < lock.remaining <= 30)
            self.assertGreater(lock.expires_at, time.time() - 3600)
            self.assertTrue(self.store.is_locked(self.key))
            info = self.store.get(self.key)
            self.assertEqual(info.fence, lock.fence)
            self.assertTrue(info.acquired_at <= info.now < info.expires_at)
        self.assertFalse(lock.held)
        self.assertFalse(lock.release())
        self.assertIsNone(self.store.get(self.key))
        with self.store.acquire(self.key) as later:
            self.assertGreater(later.fence, lock.fence)

    def test_exception_releases(self):
        with self.assertRaises(ZeroDivisionError):
            with self.store.acquire(self.key, auto_extend=True):
                1 / 0
        self.assertFalse(self.store.is_locked(self.key))

    def test_held_by_another(self):
        with self.store.acquire(self.key):
            self.assertIsNone(self.store.try_acquire(self.key))
            with self.assertRaises(syncguard.AcquisitionTimeout) as caught:
                self.store.acquire(self.key, wait=timedelta(milliseconds=50))
            self.assertIsInstance(caught.exception, TimeoutError)
            self.assertEqual(len(caught.exception.key_hash), 24)
            with self.assertRaises(syncguard.AcquisitionTimeout):
                self.store.acquire(self.key, wait=0)

    def test_waits_for_the_release(self):
        lock = self.store.acquire(self.key)
        threading.Timer(0.2, lock.release).start()
        with self.store.acquire(self.key, wait=None) as later:
            self.assertGreater(later.fence, lock.fence)

    def test_extend_detach_release_by_id(self):
        lock = self.store.acquire(self.key, ttl=20)
        self.assertTrue(lock.extend(60))
        self.assertGreater(lock.remaining, 20)
        lock_id = lock.detach()
        self.assertFalse(lock.held)
        self.assertTrue(self.store.is_locked(self.key))
        self.assertTrue(self.store.release(lock_id))
        self.assertFalse(self.store.release(lock_id))

    def test_minimum_hold(self):
        with self.store.acquire(self.key, min_hold=3600) as lock:
            pass
        self.assertFalse(lock.held)
        self.assertTrue(self.store.is_locked(self.key))

    def test_slots(self):
        with self.store.acquire(self.key, slots=2) as first, self.store.acquire(self.key, slots=2) as second:
            self.assertEqual({first.slot, second.slot}, {1, 2})
            self.assertEqual(first.key, "%s:slot:%d" % (self.key, first.slot))
            self.assertIsNone(self.store.try_acquire(self.key, slots=2))
            with self.store.acquire(self.key) as plain:
                self.assertEqual(plain.slot, 0)

    def test_bad_arguments(self):
        for key in ("", "a\0b", "x" * 513, "x" * 5000, "\ud800"):
            for call in (self.store.acquire, self.store.try_acquire, self.store.is_locked, self.store.get):
                with self.subTest(key=key[:9], call=call.__name__), self.assertRaises(syncguard.InvalidArgument):
                    call(key)
        for options in ({"ttl": 0}, {"ttl": -1}, {"ttl": float("nan")}, {"ttl": 1e300}, {"wait": -1},
                        {"slots": -1}, {"slots": 257}, {"slots": 2 ** 40},
                        {"on_lost": lambda lock, reason: None}, {"on_lost": "shout"}):
            with self.subTest(options=options), self.assertRaises(syncguard.InvalidArgument):
                self.store.acquire(self.key, **options)
        with self.assertRaises(TypeError):
            self.store.acquire(b"key")
        with self.assertRaises(syncguard.InvalidArgument):
            self.store.release("no lock id")

    def test_threads_exclude_each_other(self):
        counter = [0]

        def work():
            for _ in range(10):
                with self.store.acquire(self.key, wait=60):
                    seen = counter[0]
                    time.sleep(0.001)
                    counter[0] = seen + 1

        threads = [threading.Thread(target=work) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(counter[0], 40)

    def test_others_run_while_one_waits(self):
        with self.store.acquire(self.key):
            abort, steps = syncguard.Abort(), 0
            errors = []

            def wait():
                try:
                    self.store.acquire(self.key, wait=None, abort=abort)
                except syncguard.Aborted as error:
                    errors.append(error)

            waiter = threading.Thread(target=wait)
            waiter.start()
            for _ in range(100):
                time.sleep(0.001)
                steps += 1
            self.assertTrue(waiter.is_alive())
            abort.trigger()
            waiter.join(30)
            self.assertEqual((steps, len(errors), abort.triggered), (100, 1, True))
        with self.assertRaises(syncguard.Aborted):
            self.store.acquire(self.key, abort=abort)

    def test_close_ends_waiting(self):
        lock = self.store.acquire(self.key)
        threading.Timer(0.1, self.store.close).start()
        with self.assertRaises(syncguard.Aborted):
            self.store.acquire(self.key, wait=None)
        self.assertTrue(lock.held)  # it keeps the store open
        self.assertTrue(lock.release())
        with self.assertRaises(syncguard.InvalidArgument):
            self.store.is_locked(self.key)

    def test_lost_calls_a_function(self):
        told, called = [], threading.Event()

        def lost(lock, reason):
            told.append((lock, reason, lock.release()))
            called.set()

        lock = self.store.acquire(self.key, ttl=3, auto_extend=True, on_lost=lost)
        with lock:
            self.store.release(lock.id)
            self.assertTrue(called.wait(30))
        self.assertEqual(told, [(lock, "absent", False)])

    def test_on_lost_ends_with_its_lock(self):
        from syncguard import _backend
        ends = {"release": lambda lock: lock.release(), "close": lambda lock: lock.close(),
                "detach": lambda lock: self.store.release(lock.detach())}
        for name, end in ends.items():
            with self.subTest(end=name):
                before = len(_backend._losses)
                lock = self.store.acquire(self.key, auto_extend=True, on_lost=lambda lock, reason: None)
                self.assertEqual(len(_backend._losses), before + 1)
                end(lock)
                self.assertEqual(len(_backend._losses), before)

    def test_lost_raises_at_the_end(self):
        with self.assertRaises(syncguard.LockLost) as caught:
            with self.store.acquire(self.key, ttl=3, auto_extend=True) as lock:
                self.store.release(lock.id)
                deadline = time.monotonic() + 30
                while lock.lost is None and time.monotonic() < deadline:
                    time.sleep(0.01)
                with self.assertRaises(syncguard.LockLost):
                    lock.check()
        self.assertEqual(caught.exception.reason, "absent")
        with self.assertRaises(KeyError):  # its own exception goes first
            with self.store.acquire(self.key, ttl=2) as lock:
                time.sleep(lock.remaining + 0.1)
                raise KeyError

    def test_loss_found_by_the_release(self):
        with self.assertRaises(syncguard.LockLost) as caught:
            with self.store.acquire(self.key) as lock:
                self.store.release(lock.id)
        self.assertEqual((caught.exception.reason, lock.lost), ("absent", "absent"))
        with self.assertRaises(KeyError):  # its own exception goes first
            with self.store.acquire(self.key) as lock:
                self.store.release(lock.id)
                raise KeyError
        with self.store.acquire(self.key, on_lost=None) as lock:
            self.store.release(lock.id)
        self.assertEqual(lock.lost, "absent")

    def test_body_that_ends_the_lock_itself(self):
        with self.store.acquire(self.key) as lock:
            self.assertTrue(lock.release())
        self.assertIsNone(lock.lost)
        with self.store.acquire(self.key) as lock:
            lock.close()
        self.assertIsNone(lock.lost)
        with self.store.acquire(self.key) as lock:
            self.store.release(lock.detach())
        self.assertIsNone(lock.lost)
        with self.store.acquire(self.key) as lock:
            self.store.release(lock.id)
            self.assertFalse(lock.release())  # which tells the body

    def test_dropped_lock_is_released(self):
        lock = self.store.acquire(self.key, auto_extend=True)
        with self.assertWarns(ResourceWarning):
            del lock
        self.assertFalse(self.store.is_locked(self.key))

    def test_many_closed_at_once(self):
        stores = [syncguard.open(URL, timeout=20) for _ in range(3)]
        locks = [store.acquire("%s/%d" % (self.key, i)) for i, store in enumerate(stores)]
        for store in stores:
            store.close()
            store.close()
        for lock in locks:
            self.assertTrue(lock.release())


class ErrorTest(unittest.TestCase):
    def test_one_class_per_status(self):
        from syncguard import _errors, _library
        self.assertEqual(sorted(_errors.BY_STATUS), list(range(-9, 0)))
        for status, kind in _errors.BY_STATUS.items():
            error = _library.failure(_library.ErrorDetails(code=status, native=b"N", message=b"text"))
            self.assertIs(type(error), kind)
            self.assertEqual((str(error), error.native), ("text", "N"))
            again = pickle.loads(pickle.dumps(error))
            self.assertEqual((type(again), str(again), again.native), (kind, "text", "N"))
        self.assertEqual(pickle.loads(pickle.dumps(syncguard.LockLost("absent"))).reason, "absent")

    def test_open(self):
        for url in ("nowhere:", "", "memory:\0"):
            with self.subTest(url=url), self.assertRaises(syncguard.InvalidArgument):
                syncguard.open(url)
        with self.assertRaises(syncguard.InvalidArgument):
            syncguard.open("memory:", owner="x" * 200)
        syncguard.setup("memory:")
        self.assertEqual(repr(syncguard.open("memory:")), "<syncguard.Backend memory>")


if __name__ == "__main__":
    unittest.main()
