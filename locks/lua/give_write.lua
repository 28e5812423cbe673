-- give_write: a fragment, joined behind `read_write`. Never run by itself.
-- Lowers the write hold to the count told; at 0 gives the lock back, or to the reads of the same owner, and wakes everybody.
-- Returns {holds left, subscribers that heard the wake-up} or {-1, 0}.
local function give_write(lock, writer, count, channel)
    local held = tonumber(redis.call('HGET', lock, writer))
    if not held then
        return gone(lock, writer)
    end
    if count > 0 then
        if held > count then
            redis.call('HSET', lock, writer, count)
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
end
