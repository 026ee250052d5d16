-- KEYS: index; or lock, with all four arguments
-- ARGV: ttl, life of the names (ttl and tolerance, ms), the lock id if the index is hashed, and a
-- fourth one if the key is the lock
-- The new expiry; other results as in release.
local call = redis.call
local name = ARGV[4] and KEYS[1] or call('GET', KEYS[1])
if not name then
  return 0
end
local value = redis.pcall('GET', name)
if not value then
  return 0
end
if type(value) == 'table' then
  return string.find(value.err, '^%-?WRONGTYPE') and -2 or -6
end
--@decode
if id ~= (ARGV[3] or string.sub(KEYS[1], -22)) then
  return 0
end
local time = call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if expires + ARGV[2] - ARGV[1] <= now then
  return 1
end
-- Replace the number in place, so that every other field stays as it was written. The right
-- occurrence of the name is the one that changes what a decoder sees.
local later = now + ARGV[1]
local digits = string.format('%d%06d', later / 1000000, later % 1000000)
local text
if string.sub(value, 1, 49) == '{"lockId":"' .. id .. '","expiresAtMs":'
    and string.sub(value, 63, 78) == ',"acquiredAtMs":' then
  text = string.sub(value, 1, 49) .. digits .. string.sub(value, 63)
elseif expires == later then
  text = value
else
  local from = 1
  while not text do
    local first, last = string.find(value, '"expiresAtMs"%s*:%s*[-+%d.eE]+', from)
    if not first then
      return -2
    end
    local head = string.match(string.sub(value, first, last), '^"expiresAtMs"%s*:%s*')
    local try = string.sub(value, 1, first - 1) .. head .. digits .. string.sub(value, last + 1)
    local fine, t = pcall(cjson.decode, try)
    if fine and t.expiresAtMs == later then
      text = try
    end
    from = last + 1
  end
end
-- At its memory limit a server refuses SET only as a script's first write. So the first one is
-- PEXPIRE, with the lifetime that the name has anyway, in case SET fails for another reason.
local left = math.ceil(expires + ARGV[2] - ARGV[1] - now)
local done = redis.pcall('PEXPIRE', name, left)
if type(done) == 'number' then
  done = redis.pcall('SET', name, text, 'PX', ARGV[2])
end
if done.err then
  return done
end
call('PEXPIRE', KEYS[1], ARGV[2])
return later
