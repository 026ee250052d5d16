"""asyncio over one store, SYNCGUARD_TEST_URL."""

import asyncio
import concurrent.futures
import os
import select
import time
import unittest

import syncguard
import syncguard.aio

URL = os.environ.get("SYNCGUARD_TEST_URL", "memory:")


class AsyncTest(unittest.IsolatedAsyncioTestCase):
    async def asyncSetUp(self):
        self.key = "python/" + self.id()
        self.store = syncguard.aio.open(URL, timeout=20)
        self.addAsyncCleanup(self.store.close)

    async def free(self):
        lock = await self.store.acquire(self.key, wait=20)
        return await lock.release()

    async def test_scope(self):
        async with self.store.lock(self.key, wait=20, auto_extend=True) as lock:
            self.assertTrue(lock.held)
            self.assertEqual((lock.key, len(lock.id), len(lock.fence)), (self.key, 22, 15))
            self.assertTrue(await lock.extend(60))
            self.assertGreater(lock.remaining, 30)
            with self.assertRaises(syncguard.AcquisitionTimeout):
                await self.store.acquire(self.key, wait=0.05)
        self.assertFalse(lock.held)
        self.assertFalse(await lock.release())
        with self.assertRaises(ZeroDivisionError):
            async with self.store.lock(self.key, wait=20):
                1 / 0
        self.assertTrue(await self.free())

    async def test_slots(self):
        async with self.store.lock(self.key, wait=20, slots=2) as first:
            async with self.store.lock(self.key, wait=20, slots=2) as second:
                self.assertEqual({first.slot, second.slot}, {1, 2})
                with self.assertRaises(syncguard.AcquisitionTimeout):
                    await self.store.acquire(self.key, wait=0.05, slots=2)
                waiter = asyncio.create_task(self.store.acquire(self.key, wait=20, slots=2))
                await asyncio.sleep(0.1)
                self.assertFalse(waiter.done())
            third = await waiter
            self.assertEqual(third.slot, second.slot)
            await third.release()

    async def test_the_loop_goes_on(self):
        lock = await self.store.acquire(self.key)
        waiter = asyncio.create_task(self.store.acquire(self.key, wait=None))
        for _ in range(50):
            await asyncio.sleep(0.002)
        self.assertFalse(waiter.done())
        await lock.release()
        self.assertGreater((await waiter).fence, lock.fence)

    async def test_tasks_exclude_each_other(self):
        counter = [0]

        async def work():
            for _ in range(5):
                async with self.store.lock(self.key, wait=120):
                    seen = counter[0]
                    await asyncio.sleep(0.001)
                    counter[0] = seen + 1

        await asyncio.gather(*(work() for _ in range(6)))
        self.assertEqual(counter[0], 30)

    async def test_cancelled_task_has_no_lock(self):
        async with self.store.lock(self.key):
            waiter = asyncio.create_task(self.store.acquire(self.key, wait=None))
            await asyncio.sleep(0.05)
            waiter.cancel()
            with self.assertRaises(asyncio.CancelledError):
                await waiter
        self.assertTrue(await self.free())

    async def test_cancel_against_grant(self):
        """Nothing stays locked, whether the task is cancelled before, with or after the grant."""
        for step in range(20):
            waiter = asyncio.create_task(self.store.acquire(self.key, ttl=3600))
            deadline = time.monotonic() + step * 0.0005
            while not waiter.done() and time.monotonic() < deadline:
                await asyncio.sleep(0)
            waiter.cancel()
            try:
                lock = await waiter
            except asyncio.CancelledError:
                pass
            else:
                await lock.release()
        self.assertTrue(await self.free())

    async def test_timeout_of_asyncio(self):
        async with self.store.lock(self.key):
            with self.assertRaises(asyncio.TimeoutError):
                await asyncio.wait_for(self.store.acquire(self.key, wait=None), 0.1)

    async def test_lost_raises(self):
        with syncguard.open(URL, timeout=20) as other:
            with self.assertRaises(syncguard.LockLost) as caught:
                async with self.store.lock(self.key, ttl=3, auto_extend=True) as lock:
                    self.take_away(other, lock)
                    await asyncio.sleep(60)  # cancelled by the loss
            self.assertEqual(caught.exception.reason, "absent")
        await asyncio.sleep(0)  # the task itself is not cancelled any more

    async def test_lost_calls_a_function(self):
        told = asyncio.get_running_loop().create_future()
        with syncguard.open(URL, timeout=20) as other:
            async with self.store.lock(self.key, ttl=3, auto_extend=True,
                                       on_lost=lambda lock, reason: told.set_result((lock, reason))) as lock:
                self.take_away(other, lock)
                self.assertEqual(await asyncio.wait_for(told, 30), (lock, "absent"))

    async def test_lost_does_nothing(self):
        with syncguard.open(URL, timeout=20) as other:
            async with self.store.lock(self.key, ttl=3, auto_extend=True, on_lost=None) as lock:
                self.take_away(other, lock)
                deadline = time.monotonic() + 30
                while lock.lost is None and time.monotonic() < deadline:
                    await asyncio.sleep(0.01)
                await asyncio.sleep(0.1)  # the completion is read
            self.assertEqual(lock.lost, "absent")

    async def test_lost_with_its_grant(self):
        """The loop is busy from the request until after the loss, and reads grant and loss together."""
        entered, told = {}, []

        async def body(name, on_lost):
            async with self.store.lock(self.key + name, ttl=2, max_hold=0.5, auto_extend=True, on_lost=on_lost) as lock:
                entered[name] = lock
                deadline = time.monotonic() + 30
                while lock.lost is None and time.monotonic() < deadline:
                    await asyncio.sleep(0.01)
                await asyncio.sleep(0.1)

        tasks = [asyncio.create_task(body(*arguments)) for arguments in (
            ("raise", "raise"), ("function", lambda *arguments: told.append(arguments)), ("none", None))]
        await asyncio.sleep(0)
        self.assertTrue(select.select([self.store._fd], [], [], 60)[0])
        time.sleep(4.4)  # the loss comes after 2 s
        with self.assertRaises(syncguard.LockLost) as caught:
            await tasks[0]
        await asyncio.gather(*tasks[1:])
        self.assertEqual(caught.exception.reason, "max-hold")
        self.assertEqual(told, [(entered["function"], "max-hold")])
        self.assertEqual(sorted(entered), ["function", "none"])  # a body that has already lost does not begin

    async def test_loss_found_by_the_release(self):
        with syncguard.open(URL, timeout=20) as other:
            with self.assertRaises(syncguard.LockLost) as caught:
                async with self.store.lock(self.key) as lock:
                    self.take_away(other, lock)
            self.assertEqual((caught.exception.reason, lock.lost), ("absent", "absent"))
            with self.assertRaises(KeyError):  # its own exception goes first
                async with self.store.lock(self.key) as lock:
                    self.take_away(other, lock)
                    raise KeyError
            async with self.store.lock(self.key, on_lost=None) as lock:
                self.take_away(other, lock)
            self.assertEqual(lock.lost, "absent")

    async def test_body_that_releases_the_lock_itself(self):
        async with self.store.lock(self.key) as lock:
            self.assertTrue(await lock.release())
        self.assertIsNone(lock.lost)
        with syncguard.open(URL, timeout=20) as other:
            async with self.store.lock(self.key) as lock:
                self.take_away(other, lock)
                self.assertFalse(await lock.release())  # which tells the body

    def take_away(self, other, lock):
        store = self.store._backend if URL.startswith("memory:") else other
        self.assertTrue(store.release(lock.id))

    async def test_close_releases(self):
        store = syncguard.aio.open(URL, timeout=20)
        await store.acquire(self.key + "/dropped")  # at once, by its finalizer
        lock = await store.acquire(self.key)
        waiter = asyncio.create_task(store.acquire(self.key, wait=None))
        await asyncio.sleep(0.05)
        await store.close()
        with self.assertRaises(syncguard.Aborted):
            await waiter
        self.assertFalse(lock.held)
        if not URL.startswith("memory:"):
            self.assertTrue(await self.free())

    async def retry(self, store):
        """Retries without a pause, as long as the failure permits it."""
        while True:
            try:
                return await store.acquire(self.key, wait=60)
            except syncguard.Aborted:
                pass

    async def ends_closed(self, tasks):
        for result in await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 30):
            self.assertIsInstance(result, (syncguard.InvalidArgument, syncguard.Aborted))

    async def test_acquires_that_start_while_it_closes(self):
        store = syncguard.aio.open(URL, timeout=20)
        lock = await store.acquire(self.key)
        tasks = [asyncio.create_task(self.retry(store)) for _ in range(3)]
        await asyncio.sleep(0.1)
        closing = asyncio.create_task(store.close())
        await asyncio.sleep(0)
        tasks += [asyncio.create_task(lock.extend(60)), asyncio.create_task(store.acquire(self.key + "/other"))]
        await self.ends_closed(tasks)
        await closing
        await self.ends_closed([store.acquire(self.key)])

    async def test_close_twice_and_cancelled(self):
        store = syncguard.aio.open(URL, timeout=20)
        lock = await store.acquire(self.key)
        tasks = [asyncio.create_task(self.retry(store)) for _ in range(3)]
        await asyncio.sleep(0.1)
        first, second = (asyncio.create_task(store.close()) for _ in range(2))
        await asyncio.sleep(0)
        first.cancel()
        with self.assertRaises(asyncio.CancelledError):
            await first
        await asyncio.wait_for(second, 30)
        await store.close()
        self.assertFalse(lock.held)
        await self.ends_closed(tasks)

    async def test_loop_ends_while_it_closes(self):
        async def main():
            store = syncguard.aio.open(URL, timeout=20)
            lock = await store.acquire(self.key)
            waiter = asyncio.create_task(self.retry(store))
            await asyncio.sleep(0.1)
            closing = asyncio.create_task(store.close())
            await asyncio.sleep(0)
            return store, lock, waiter, closing

        store, lock, waiter, closing = await asyncio.wait_for(asyncio.to_thread(asyncio.run, main()), 30)
        self.assertTrue(waiter.done() and closing.done())
        self.assertFalse(lock.held)
        await store.close()
        if not URL.startswith("memory:"):
            self.assertTrue(await self.free())

    async def test_close_in_another_loop(self):
        """Closing awaits nothing of a loop that has ended; a loop that is running closes its store itself."""
        async def begin():
            store = syncguard.aio.open(URL, timeout=20)
            lock = await store.acquire(self.key)
            return store, lock, asyncio.ensure_future(store.acquire(self.key, wait=60))

        def run():
            loop = asyncio.new_event_loop()
            store, lock, waiter = loop.run_until_complete(begin())
            with self.assertRaises(syncguard.InvalidArgument):
                asyncio.run(store.close())
            waiter._log_destroy_pending = False  # it never ends: its loop does not run
            loop.close()
            asyncio.run(asyncio.wait_for(store.close(), 30))
            self.assertFalse(lock.held)

        with self.assertNoLogs("syncguard"):
            await asyncio.wait_for(asyncio.to_thread(run), 60)
        self.assertTrue(await self.free())

    async def test_close_in_a_loop_that_has_ended(self):
        """Another loop finishes the close that a closed loop has left unfinished."""
        async def begin():
            store = syncguard.aio.open(URL, timeout=20)
            lock = await store.acquire(self.key)
            asyncio.ensure_future(store.close())._log_destroy_pending = False
            await asyncio.sleep(0)
            return store, lock

        def run():
            loop = asyncio.new_event_loop()
            store, lock = loop.run_until_complete(begin())
            loop.close()
            asyncio.run(asyncio.wait_for(store.close(), 30))
            self.assertFalse(lock.held)

        await asyncio.wait_for(asyncio.to_thread(run), 60)
        self.assertTrue(await self.free())

    async def test_loop_ends_as_close_begins(self):
        """The loop cancels all tasks before the closing one has run: the locks are released all the same."""
        async def main():
            store = syncguard.aio.open(URL, timeout=20)
            lock = await store.acquire(self.key)
            return store, lock, asyncio.ensure_future(store.close())

        def run():
            store, lock, closing = asyncio.run(main())
            self.assertTrue(closing.cancelled())
            self.assertFalse(lock.held)
            asyncio.run(asyncio.wait_for(store.close(), 30))
            with self.assertRaises(syncguard.InvalidArgument):
                store._backend.is_locked(self.key)

        await asyncio.wait_for(asyncio.to_thread(run), 60)
        if not URL.startswith("memory:"):
            self.assertTrue(await self.free())

    async def test_close_while_another_loop_closes(self):
        store = syncguard.aio.open(URL, timeout=20)
        lock = await store.acquire(self.key)
        closing = asyncio.create_task(store.close())
        await asyncio.sleep(0)

        def run():
            with self.assertRaises(syncguard.InvalidArgument):
                asyncio.run(store.close())

        with concurrent.futures.ThreadPoolExecutor() as pool:
            pool.submit(run).result()  # this loop does not run meanwhile
        await asyncio.wait_for(closing, 30)
        self.assertFalse(lock.held)

    async def test_closed_between_grant_and_return(self):
        """Close begins at some time after the grant: acquire returns a lock that is held, or raises."""
        loop = asyncio.get_running_loop()

        async def check(store):
            try:
                self.assertTrue((await store.acquire(self.key)).held)
            except syncguard.Aborted:
                pass

        for hops in range(5):
            store = syncguard.aio.open(URL, timeout=20)
            await (await store.acquire(self.key)).release()  # which opens the queue
            acquire, closing = asyncio.create_task(check(store)), loop.create_future()

            def close(left):
                if left == 0:
                    closing.set_result(loop.create_task(store.close()))
                else:
                    loop.call_soon(close, left - 1)

            await asyncio.sleep(0)
            self.assertTrue(select.select([store._fd], [], [], 60)[0])
            close(hops)
            await acquire
            await (await closing)

    async def test_bad_arguments(self):
        for key in ("", "a\0b", "x" * 513):
            with self.assertRaises(syncguard.InvalidArgument):
                await self.store.acquire(key)
        with self.assertRaises(syncguard.InvalidArgument):
            self.store.lock(self.key, on_lost="shout")


if __name__ == "__main__":
    unittest.main()
