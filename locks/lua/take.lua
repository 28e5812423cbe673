-- take: a fragment, joined in front of the acquire scripts of locks that are a hash with one holder. Never run by itself.
-- Takes the lock, or raises the hold to the count told. Returns {1, hold count}, {0, retry after ms} or {-1, 0}.

local function take(lock, holder, count, lease_ms)
    local ttl = redis.call('PTTL', lock)
    if ttl == -2 then
        if tonumber(count) > 1 then
            return gone(lock, holder)
        end
        redis.call('HSET', lock, holder, count)
        local limited = redis.pcall('PEXPIRE', lock, lease_ms)
        if limited ~= 1 then
            undo(lock, holder)
            return limited
        end
        return {1, tonumber(count)}
    end
    local held = tonumber(redis.call('HGET', lock, holder))
    if not held then
        if tonumber(count) > 1 then
            return gone(lock, holder)
        end
        if redis.call('HEXISTS', lock, 'mode') == 1 then
            return redis.error_reply('WRONGKIND the key holds a read-write lock')
        end
        return {0, ttl}
    end
    if held < tonumber(count) then
        redis.call('HSET', lock, holder, count)
        held = tonumber(count)
    end
    if ttl < tonumber(lease_ms) then
        redis.call('PEXPIRE', lock, lease_ms)
    end
    return {1, held}
end
