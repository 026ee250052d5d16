-- KEYS: lock, index, counter
-- ARGV: lock id, ttl, tolerance, life of the names (ms), greatest fence, rest of the value
-- {1, fence, expiry} granted; {0, ms the other may still live}; {2} the lock's value is
-- unreadable; {3} the counter is; {4} the counter is at its end; {5} this id was taken back
local call, match = redis.call, string.match
local value = call('GET', KEYS[1])
local time = call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local stale
if value then
  local id, expires, fence = match(value,
    '^{"lockId":"([%w_-]+)","expiresAtMs":(%d+),"acquiredAtMs":%d+,"fence":"(%d+)","key":".*"}$')
--@decode
  local left = expires + ARGV[3] - now
  if left > 0 then
    if id == ARGV[1] then
      return {1, tonumber(fence), tonumber(expires)}
    end
    return {0, left}
  end
  stale = id
end
local counter = call('GET', KEYS[3])
if counter then
  if not match(counter, '^[1-9]%d*$') and counter ~= '0' then
    return {3}
  end
  if tonumber(counter) >= tonumber(ARGV[5]) then
    return {4}
  end
end
local done = redis.pcall('SET', KEYS[2], KEYS[1], 'NX', 'PX', ARGV[4])
if not done then
  if call('GET', KEYS[2]) ~= KEYS[1] then
    return {5}
  end
  call('PEXPIRE', KEYS[2], ARGV[4])
elseif done.err then
  return done
end
local fence = call('INCR', KEYS[3])
local expires = now + ARGV[2]
call('SET', KEYS[1], string.format(
  '{"lockId":"%s","expiresAtMs":%.0f,"acquiredAtMs":%.0f,"fence":"%015.0f",%s',
  ARGV[1], expires, now, fence, ARGV[6]), 'PX', ARGV[4])
if stale and stale ~= ARGV[1] and match(stale, '^[%w_-]+$') and #stale == #ARGV[1] then
  local old = string.sub(KEYS[2], 1, -1 - #stale) .. stale
  if call('GET', old) == KEYS[1] then
    call('DEL', old)
  end
end
return {1, fence, expires}
