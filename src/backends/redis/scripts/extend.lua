-- KEYS: index
-- ARGV: lock id, ttl, tolerance, life of the names (ms)
-- {1, expiry}; the rest as in release
local name = redis.call('GET', KEYS[1])
if not name then
  return {0, 0}
end
local value = redis.pcall('GET', name)
if not value then
  return {0, 0}
end
if type(value) == 'table' then
  return {string.find(value.err, '^%-?WRONGTYPE') and 2 or 6}
end
local fence
local id, expires, rest = string.match(value,
  '^{"lockId":"([%w_-]+)","expiresAtMs":(%d+)(),"acquiredAtMs":%d+,"fence":"%d+","key":".*"}$')
--@decode
if id ~= ARGV[1] then
  return {0, 0}
end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if expires + ARGV[3] <= now then
  return {0, 1}
end
local later = now + ARGV[2]
local text
if rest then
  text = string.format('{"lockId":"%s","expiresAtMs":%.0f%s', id, later, string.sub(value, rest))
elseif expires == later then
  text = value
else
  -- Replace the number in place, so that every other field stays as it was written. The right
  -- occurrence of the name is the one that changes what a decoder sees.
  local from = 1
  while not text do
    local first, last = string.find(value, '"expiresAtMs"%s*:%s*[-+%d.eE]+', from)
    if not first then
      return {2}
    end
    local head = string.match(string.sub(value, first, last), '^"expiresAtMs"%s*:%s*')
    local try = string.sub(value, 1, first - 1) .. head .. string.format('%.0f', later)
      .. string.sub(value, last + 1)
    local fine, t = pcall(cjson.decode, try)
    if fine and t.expiresAtMs == later then
      text = try
    end
    from = last + 1
  end
end
local done = redis.pcall('SET', name, text, 'PX', ARGV[4])
if done.err then
  return done
end
redis.call('PEXPIRE', KEYS[1], ARGV[4])
return {1, later}
