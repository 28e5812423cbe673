-- scan: tell some of the keys that may be locks. Writes nothing.
--
-- ARGV[1]  where to go on; 0 at the beginning
-- ARGV[2]  pattern of the keys
-- ARGV[3]  a hash with more fields is no lock
--
-- Returns  {where to go on, {key, time to live in ms, {field, value, ..}}, ..}
local page = redis.call('SCAN', ARGV[1], 'MATCH', ARGV[2], 'COUNT', 500)
local found = {page[1]}
for _, key in ipairs(page[2]) do
    if redis.call('TYPE', key)['ok'] == 'hash' and redis.call('HLEN', key) <= tonumber(ARGV[3]) then
        found[#found + 1] = {key, redis.call('PTTL', key), redis.call('HGETALL', key)}
    end
end
return found
