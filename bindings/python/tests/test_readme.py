"""The Python program of README.md, as it stands, takes a lock on the store of this test."""

import os
import re
import subprocess
import sys
import unittest


class ReadmeTest(unittest.TestCase):
    def test_program(self):
        with open(os.path.join(os.environ["SYNCGUARD_SOURCE"], "README.md"), encoding="utf-8") as file:
            program = re.search(r"^```python\n(.*?)^```", file.read(), re.S | re.M).group(1)
        self.assertLessEqual(len(program.splitlines()), 10)
        url = os.environ.get("SYNCGUARD_TEST_URL", "memory:")
        done = subprocess.run([sys.executable, "-W", "error", "-c", program], check=False, capture_output=True, text=True,
                              env=dict(os.environ, SYNCGUARD_URL=url))
        self.assertRegex(done.stdout + done.stderr, r"^acquired, fence \d{15}\n$")
        self.assertEqual(done.returncode, 0)


if __name__ == "__main__":
    unittest.main()
