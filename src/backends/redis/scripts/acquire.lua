-- KEYS: lock, index, counter
-- ARGV: ttl, life of the names (ttl and tolerance, ms), rest of the value, and the lock id if
-- the index is hashed
-- The stored value: granted. A positive number: how long (ms) the current lock may still live.
-- -2: the lock's value is unreadable; -3: the counter is unreadable; -4: the counter is at its end;
-- -5: this id was taken back.
local call = redis.call
local lock_id = ARGV[4] or string.sub(KEYS[2], -22)
local value = call('GET', KEYS[1])
local time = call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local stale
if value then
--@decode
  local left = expires + ARGV[2] - ARGV[1] - now
  if left > 0 then
    if id == lock_id then
      -- Sent again. WAIT covers what its connection wrote, so this request writes, too.
      local kept = redis.pcall('PEXPIRE', KEYS[1], math.ceil(left))
      return type(kept) == 'table' and kept or value
    end
    return math.ceil(left)
  end
  stale = id
end
local counter = call('GET', KEYS[3])
if counter then
  if not string.find(counter, '^[1-9]%d*$') and counter ~= '0' then
    return -3
  end
  if tonumber(counter) >= @FENCE_MAX@ then
    return -4
  end
end
local done = redis.pcall('SET', KEYS[2], KEYS[1], 'NX', 'PX', ARGV[2])
if not done then
  if call('GET', KEYS[2]) ~= KEYS[1] then
    return -5
  end
  call('PEXPIRE', KEYS[2], ARGV[2])
elseif done.err then
  return done
end
-- Two halves, because a long has 32 bits on some servers.
local fence = call('INCR', KEYS[3])
local expires = now + ARGV[1]
value = string.format(
  '{"lockId":"%s","expiresAtMs":%d%06d,"acquiredAtMs":%d%06d,"fence":"%09d%06d",%s',
  lock_id, expires / 1000000, expires % 1000000, now / 1000000, now % 1000000,
  fence / 1000000, fence % 1000000, ARGV[3])
call('SET', KEYS[1], value, 'PX', ARGV[2])
if type(stale) == 'string' and stale ~= lock_id and not ARGV[4] and #stale == 22
    and string.find(stale, '^[%w_-]+$') then
  -- The lock is granted: a problem with that name must not look like a failure.
  local old = string.sub(KEYS[2], 1, -23) .. stale
  if redis.pcall('GET', old) == KEYS[1] then
    redis.pcall('DEL', old)
  end
end
return value
