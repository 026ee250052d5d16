"""Events that end, copy or interrupt a process: ^C, fork, the end of the interpreter. Each in its own process."""

import os
import signal
import subprocess
import sys
import textwrap
import time
import unittest

import syncguard

URL = os.environ.get("SYNCGUARD_TEST_URL", "memory:")


def start(code, key):
    return subprocess.Popen([sys.executable, "-W", "error", "-c", textwrap.dedent(code), URL, key],
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0)


class ProcessTest(unittest.TestCase):
    def setUp(self):
        self.key = "python/" + self.id()

    def run_code(self, code, send=None):
        """Runs a program that prints "ready" first; with send it then gets this signal. Returns its output."""
        process = start(code, self.key)
        try:
            self.assertEqual(process.stdout.readline(), b"ready\n", "it did not start")
            if send is not None:
                time.sleep(0.3)  # until it waits
                process.send_signal(send)
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
            process.wait()
        self.assertEqual((process.returncode, err.decode()), (0, ""))
        return out.decode()

    def assert_free(self):
        if not URL.startswith("memory:"):
            with syncguard.open(URL, timeout=20) as store:
                self.assertFalse(store.is_locked(self.key))

    def test_interrupt_ends_a_waiting_acquire(self):
        out = self.run_code("""
            import sys, syncguard, threading
            store = syncguard.open(sys.argv[1])
            with store.acquire(sys.argv[2]):
                print("ready", flush=True)
                try:
                    store.acquire(sys.argv[2], wait=None)
                except KeyboardInterrupt:
                    print("interrupted")
            print(threading.active_count(), store.is_locked(sys.argv[2]))
            with store.acquire(sys.argv[2], wait=0):
                print("acquired")
        """, signal.SIGINT)
        self.assertEqual(out, "interrupted\n1 False\nacquired\n")

    def test_handlers_run_while_an_acquire_waits(self):
        """A handler that does not raise does not end the waiting."""
        out = self.run_code("""
            import signal, sys, syncguard
            store = syncguard.open(sys.argv[1])
            lock = store.acquire(sys.argv[2])
            signal.signal(signal.SIGTERM, lambda *_: print("handled", lock.release()))
            print("ready", flush=True)
            with store.acquire(sys.argv[2], wait=None):
                print("acquired")
        """, signal.SIGTERM)
        self.assertEqual(out, "handled True\nacquired\n")

    def test_end_of_the_interpreter(self):
        """Locks that nobody released, one of them renewed, and a daemon thread that waits."""
        self.run_code("""
            import sys, syncguard, threading, time
            store = syncguard.open(sys.argv[1])
            lock = store.acquire(sys.argv[2], ttl=3, auto_extend=True, on_lost=lambda lock, reason: print(reason))
            other = store.acquire(sys.argv[2] + "/other")
            def wait():
                store.acquire(sys.argv[2], wait=None)
            threading.excepthook = lambda arguments: None
            threading.Thread(target=wait, daemon=True).start()
            time.sleep(0.2)
            print("ready", flush=True)
        """)
        self.assert_free()

    def test_exit_inside_with(self):
        self.run_code("""
            import sys, syncguard
            store = syncguard.open(sys.argv[1])
            with store.acquire(sys.argv[2]):
                print("ready", flush=True)
                sys.exit(0)
        """)
        self.assert_free()

    def test_fork(self):
        """A child has none of its parent's locks and cannot release them, while another thread of the parent waits."""
        out = self.run_code("""
            import os, sys, syncguard, threading, time
            store = syncguard.open(sys.argv[1])
            lock = store.acquire(sys.argv[2], auto_extend=True)
            abort = syncguard.Abort()
            def wait():
                try:
                    store.acquire(sys.argv[2], wait=None, abort=abort)
                except syncguard.Aborted:
                    pass
            waiter = threading.Thread(target=wait)
            waiter.start()
            time.sleep(0.2)
            print("ready", flush=True)
            child = os.fork()
            if child == 0:
                print(lock.held, lock.lost, lock.release(), flush=True)
                store.close()
                sys.exit(3)
            print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), lock.held, store.is_locked(sys.argv[2]))
            abort.trigger()
            waiter.join()
            print(lock.release())
        """)
        self.assertEqual(out, "False forked False\n3 True True\nTrue\n")
        self.assert_free()

    def test_fork_and_use(self):
        """Where the store allows it, a child uses the store that its parent opened."""
        if URL.startswith(("sqlite:", "memory:")):
            expected = "InvalidArgument" if URL.startswith("sqlite:") else "acquired"
        else:
            expected = "locked"
        out = self.run_code("""
            import os, sys, syncguard
            store = syncguard.open(sys.argv[1], timeout=20)
            with store.acquire(sys.argv[2]):
                print("ready", flush=True)
                child = os.fork()
                if child == 0:
                    try:
                        lock = store.try_acquire(sys.argv[2])
                        print("locked" if lock is None else "acquired", flush=True)
                        if lock is not None:
                            lock.release()
                    except syncguard.Error as error:
                        print(type(error).__name__, flush=True)
                    os._exit(0)
                os.waitpid(child, 0)
        """)
        self.assertEqual(out, expected + "\n")


if __name__ == "__main__":
    unittest.main()
