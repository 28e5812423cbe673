-- write_release: lower the write hold to the count told; at 0 give the lock back, or to the reads of the same owner, and wake
-- everybody. Harmless when run twice.
--
-- KEYS[1]  lock hash: "mode" -> read or write, holder id -> hold count, writer's field -> hold count
-- ARGV[1]  writer's field
-- ARGV[2]  hold count to leave behind
-- ARGV[3]  wake channel
--
-- Returns  {holds left, subscribers that heard the wake-up, -1 if it may not be published}; {-1, 0} if it holds nothing
local lock = KEYS[1]
local writer, count, channel = ARGV[1], tonumber(ARGV[2]), ARGV[3]

local held = tonumber(redis.call('HGET', lock, writer))
if not held then
    return gone(lock, writer)
end
if count > 0 then
    if held > count then
        redis.call('HSET', lock, writer, ARGV[2])
        held = count
    end
    return {held, 0}
end
redis.call('HDEL', lock, writer)
if redis.call('HLEN', lock) == 1 then
    redis.call('DEL', lock)
else
    redis.call('HSET', lock, 'mode', 'read')
end
-- `1` wakes everybody, also after a downgrade: readers that wait may enter beside the one that stays. Redisson loses it for a waiter
-- that is about to sleep, but keeps a `0` for it.
local heard = redis.pcall('PUBLISH', channel, '1')
redis.pcall('PUBLISH', channel, '0')
return {0, tonumber(heard) or -1}
