-- KEYS: lock
-- ARGV: ttl, life of the name (ttl and tolerance, ms), lock id, fence (15 digits), rest of the
-- value, and with a fence the time (acquiredAtMs) at which the name was taken
-- Part of an acquire while the hash slot moves. Fence zero: takes the name, which grants nothing
-- yet. Another fence: makes the grant, if the name has been ours since it was taken. If a late copy
-- of the first request took the name once more, another owner may have had it meanwhile, with a
-- higher fence.
-- The stored value: done. A positive number: how long (ms) the current lock may still live. 0: the
-- name is not ours any more. -2: the lock's value is unreadable.
local call = redis.call
local value = call('GET', KEYS[1])
local time = call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local taking = tonumber(ARGV[4]) == 0
local ours = false
if value then
--@decode
  local left = expires + ARGV[2] - ARGV[1] - now
  if left > 0 then
    if id ~= ARGV[3] then
      return math.ceil(left)
    end
    ours = taking or string.find(value, '"acquiredAtMs":' .. ARGV[6] .. ',', 1, true)
      or string.find(value, '"fence":"' .. ARGV[4] .. '"', 1, true)
    if taking and not string.find(value, '"fence":"000000000000000"', 1, true) then
      -- Granted by an earlier sending. WAIT covers what its connection wrote, so this writes, too.
      local kept = redis.pcall('PEXPIRE', KEYS[1], math.ceil(left))
      return type(kept) == 'table' and kept or value
    end
  end
end
if not ours and not taking then
  return 0
end
local expires = now + ARGV[1]
value = string.format(
  '{"lockId":"%s","expiresAtMs":%d%06d,"acquiredAtMs":%d%06d,"fence":"%s",%s',
  ARGV[3], expires / 1000000, expires % 1000000, now / 1000000, now % 1000000, ARGV[4], ARGV[5])
local done = redis.pcall('SET', KEYS[1], value, 'PX', ARGV[2])
return done.err and done or value
