-- KEYS: lock
-- {now, value}; {now} without one; {now, -2} if it is too large to be a lock
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local value = redis.call('GET', KEYS[1])
if not value then
  return {now}
end
return {now, #value <= 65536 and value or -2}
