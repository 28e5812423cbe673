-- reentrant_release: lower the hold to the count told; at 0 delete the lock and wake a waiter. Harmless when run twice.
--
-- KEYS[1]  lock hash: holder id -> hold count
-- ARGV[1]  holder id
-- ARGV[2]  hold count to leave behind
-- ARGV[3]  wake channel
--
-- Returns  0 if nobody listened; {holds left, subscribers that heard the wake-up, -1 if it may not be published}; {-1, 0} if it holds nothing
local lock = KEYS[1]
local holder, count, channel = ARGV[1], tonumber(ARGV[2]), ARGV[3]

local held = tonumber(redis.call('HGET', lock, holder))
if not held then
    -- As `gone` of the fragment `hold`; joining that would cost every release as much as a command does.
    redis.call('HDEL', lock, holder)
    return {-1, 0}
end
if count > 0 then
    if held > count then
        redis.call('HSET', lock, holder, ARGV[2])
        held = count
    end
    return {held, 0}
end
-- A delete goes first: it is allowed when memory is full, and once something was written the rest is too.
redis.call('DEL', lock)
local heard = redis.pcall('PUBLISH', channel, '0')
if heard == 0 then
    return 0
end
return {0, tonumber(heard) or -1}
