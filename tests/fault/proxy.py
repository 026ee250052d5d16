"""A TCP proxy on loopback that misbehaves on demand.

Modes (set at any time, for existing and new connections):
  pass    forwards
  delay   forwards replies after a pause
  drop    holds both directions back until the mode ends, as TCP does when packets are lost
  lose    swallows both directions; a connection that lost something stays open and silent for good
  cut     forwards a part of the next reply and closes
  half    closes its sending side towards the client after the next reply
  slow    forwards replies a few bytes at a time
  twice   holds every reply back for as long again as the server took for it
"""

import asyncio
import threading
import time


class Proxy:
    def __init__(self, target_port):
        self.target_port = target_port
        self.mode = "pass"
        self.port = None
        self.writers = set()
        self.loop = asyncio.new_event_loop()
        started = threading.Event()
        self.thread = threading.Thread(target=self._run, args=(started,), daemon=True)
        self.thread.start()
        started.wait()

    def _run(self, started):
        asyncio.set_event_loop(self.loop)

        async def serve():
            self.server = await asyncio.start_server(self._client, "127.0.0.1", 0)
            self.port = self.server.sockets[0].getsockname()[1]
            started.set()

        self.loop.run_until_complete(serve())
        self.loop.run_forever()

    async def _client(self, reader, writer):
        try:
            up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self.target_port)
        except OSError:
            writer.close()
            return
        self.writers.update((writer, up_writer))
        state = {"asked": time.monotonic(), "lost": False}  # when the last request passed
        tasks = [
            asyncio.ensure_future(self._pump(reader, up_writer, False, state)),
            asyncio.ensure_future(self._pump(up_reader, writer, True, state)),
        ]
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in tasks:
            task.cancel()
        for end in (writer, up_writer):
            self.writers.discard(end)
            end.close()

    async def _pump(self, reader, writer, reply, state):
        try:
            while True:
                data = await reader.read(65536)
                if not data:
                    return
                state["lost"] = state["lost"] or self.mode == "lose"
                if state["lost"]:
                    continue
                while self.mode == "drop":
                    await asyncio.sleep(0.01)
                if not reply:
                    state["asked"] = time.monotonic()
                elif self.mode == "twice":
                    await asyncio.sleep(time.monotonic() - state["asked"])
                if not await self._forward(data, writer, reply):
                    return
        except (OSError, asyncio.CancelledError):
            return

    async def _forward(self, data, writer, reply):
        mode = self.mode
        if reply and mode == "delay":
            await asyncio.sleep(0.15)
        if reply and mode == "cut":
            writer.write(data[: len(data) // 2])
            await writer.drain()
            return False
        if reply and mode == "slow":
            for i in range(0, len(data), 7):
                writer.write(data[i : i + 7])
                await writer.drain()
                await asyncio.sleep(0.002)
            return True
        writer.write(data)
        await writer.drain()
        if reply and mode == "half":
            writer.write_eof()
            await asyncio.sleep(0.5)
            return False
        return True

    def set(self, mode):
        self.mode = mode

    def close(self):
        def stop():
            self.server.close()
            for writer in list(self.writers):
                writer.close()
            self.loop.call_later(0.1, self.loop.stop)

        self.loop.call_soon_threadsafe(stop)
        self.thread.join(5)
