-- take_read: a fragment, joined behind `read_write`. Never run by itself.
-- Takes a read hold, or raises it to the count told. Returns {1, hold count}, {0, retry after ms} or {-1, 0}.
local function take_read(lock, hold_key, holder, count, lease_ms, writer)
    local mode = redis.call('HGET', lock, 'mode')
    if not mode and redis.call('EXISTS', lock) == 1 then
        return wrong_kind()
    end
    if mode and redis.call('PTTL', lock) == -1 then
        -- Neither ours nor Redisson's: left as it is.
        return {0, -1}
    end
    local held = mode and tonumber(redis.call('HGET', lock, holder))
    if not held and tonumber(count) > 1 then
        return gone(lock, holder)
    end
    if mode == 'write' and not held and redis.call('HEXISTS', lock, writer) == 0 then
        return {0, redis.call('PTTL', lock)}
    end

    -- The hold key comes first: if it may not be made, nothing was written.
    keep_hold_key(hold_key, lease_ms)
    if not mode then
        redis.call('HSET', lock, 'mode', 'read')
    end
    if not held or held < tonumber(count) then
        redis.call('HSET', lock, holder, count)
    end
    local limited = 1
    if not mode or redis.call('PTTL', lock) < tonumber(lease_ms) then
        limited = redis.pcall('PEXPIRE', lock, lease_ms)
    end
    if limited ~= 1 then
        if not mode then
            undo(lock, 'mode', holder)
        end
        return limited
    end
    return {1, math.max(held or 0, tonumber(count))}
end
