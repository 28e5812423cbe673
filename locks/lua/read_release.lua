-- read_release: lower a read hold to the count told; at 0 take the reader out, and with the last living one delete the lock and
-- wake a waiter. Harmless when run twice.
--
-- KEYS[1]  lock hash: "mode" -> read or write, holder id -> hold count, writer's field -> hold count
-- KEYS[2]  stem of all hold keys: a hold key is <stem>:<holder id>:rwlock_timeout:<n>
-- ARGV[1]  holder id
-- ARGV[2]  hold count to leave behind
-- ARGV[3]  wake channel
--
-- Returns  {holds left, subscribers that heard the wake-up, -1 if it may not be published}; {-1, 0} if it holds nothing
local lock, stem = KEYS[1], KEYS[2]
local holder, count, channel = ARGV[1], tonumber(ARGV[2]), ARGV[3]

-- Other readers' hold keys are known from the hash alone, so they are built here; they share the lock's slot.
local function hold_key(reader, n)
    return stem .. ':' .. reader .. ':rwlock_timeout:' .. n
end

local held = tonumber(redis.call('HGET', lock, holder))
if not held then
    return gone(lock, holder)
end
for n = count + 1, held do
    redis.call('DEL', hold_key(holder, n))
end
if count > 0 then
    if held > count then
        redis.call('HSET', lock, holder, ARGV[2])
        held = count
    end
    return {held, 0}
end

redis.call('HDEL', lock, holder)
if redis.call('HGET', lock, 'mode') == 'write' then
    return {0, 0}
end
local longest = 0
local fields = redis.call('HGETALL', lock)
for i = 1, #fields, 2 do
    for n = 1, tonumber(fields[i + 1]) or 0 do
        longest = math.max(longest, redis.call('PTTL', hold_key(fields[i], n)))
    end
end
if longest > 0 then
    -- The lock lives as long as its longest living reader.
    redis.call('PEXPIRE', lock, longest)
    return {0, 0}
end
redis.call('DEL', lock)
local heard = redis.pcall('PUBLISH', channel, '0')
return {0, tonumber(heard) or -1}
