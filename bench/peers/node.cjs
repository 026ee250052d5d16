// Locks of npm packages on Redis. Reads "WHAT LIBRARY NUMBER" per line, prints one number:
//   pair       microseconds (p50) of an acquire and release, out of NUMBER
//   rate       pairs per second of NUMBER workers on keys of their own, for a second
//   handover   microseconds (p50) from a release until another client has the lock, out of NUMBER
const Redis = require('ioredis');
const { Mutex } = require('redis-semaphore');
const { default: Redlock } = require('redlock');

const port = Number(process.argv[2]);
const clients = [new Redis(port, '127.0.0.1'), new Redis(port, '127.0.0.1')];
const redlocks = clients.map((client) => new Redlock([client], { retryCount: -1 }));
redlocks.forEach((redlock) => redlock.on('error', () => {}));

// Each returns a function that releases. No renewing, as in what they are compared with.
const libraries = {
  'redis-semaphore': async (which, key) => {
    const mutex = new Mutex(clients[which], key, {
      lockTimeout: 30000, acquireTimeout: 60000, refreshInterval: 0,
    });
    await mutex.acquire();
    return () => mutex.release();
  },
  redlock: async (which, key) => {
    const lock = await redlocks[which].acquire([key], 30000);
    return () => lock.release();
  },
};

const now = () => Number(process.hrtime.bigint()) / 1000;
const pause = (ms) => new Promise((done) => { setTimeout(done, ms); });
const median = (times) => times.sort((a, b) => a - b)[Math.floor(times.length / 2)];

async function pair(acquire, count) {
  const times = [];
  for (let i = 0; i < count; i += 1) {
    const start = now();
    await (await acquire(0, 'peer'))();
    times.push(now() - start);
  }
  return median(times);
}

async function rate(acquire, workers) {
  const end = now() + 1e6;
  let pairs = 0;
  const start = now();
  await Promise.all(Array.from({ length: workers }, async (_, i) => {
    while (now() < end) {
      await (await acquire(0, `peer:${i}`))();
      pairs += 1;
    }
  }));
  return pairs / (now() - start) * 1e6;
}

async function handover(acquire, turns) {
  const times = [];
  for (let i = 0; i < turns; i += 1) {
    const release = await acquire(0, 'peer');
    const waiting = acquire(1, 'peer').then((free) => [free, now()]);
    await pause(30 + Math.random() * 100);
    const released = now();
    await release();
    const [free, got] = await waiting;
    times.push(got - released);
    await free();
  }
  return median(times);
}

const work = { pair, rate, handover };
require('readline').createInterface({ input: process.stdin }).on('line', async (line) => {
  const [what, library, number] = line.split(' ');
  console.log((await work[what](libraries[library], Number(number))).toFixed(2));
}).on('close', () => process.exit(0));
