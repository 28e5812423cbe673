-- take_write: a fragment, joined behind `read_write`. Never run by itself.
-- Takes the write hold, or raises it to the count told. Returns {1, hold count}, {0, retry after ms} or {-1, 0}.
local function take_write(lock, writer, count, lease_ms)
    local ttl = redis.call('PTTL', lock)
    if ttl == -2 then
        if tonumber(count) > 1 then
            return gone(lock, writer)
        end
        redis.call('HSET', lock, 'mode', 'write', writer, count)
        local limited = redis.pcall('PEXPIRE', lock, lease_ms)
        if limited ~= 1 then
            undo(lock, 'mode', writer)
            return limited
        end
        return {1, tonumber(count)}
    end

    if not redis.call('HGET', lock, 'mode') then
        return wrong_kind()
    end
    local held = tonumber(redis.call('HGET', lock, writer))
    if not held then
        if tonumber(count) > 1 then
            return gone(lock, writer)
        end
        return {0, ttl}
    end
    if held < tonumber(count) then
        redis.call('HSET', lock, writer, count)
        held = tonumber(count)
        -- Redisson's rule: a re-entry of a writer adds its lease to what is left.
        redis.call('PEXPIRE', lock, string.format('%.0f', ttl + tonumber(lease_ms)))
    elseif ttl < tonumber(lease_ms) then
        redis.call('PEXPIRE', lock, lease_ms)
    end
    return {1, held}
end

-- Gives the write hold back and takes it for another writer, unless the first one reads beside its writing. Creates no lock.
-- Returns what `take_write` returns; {0, 0} nothing was done, {-1, 0} neither holds it.
local function pass_write(lock, from, to, lease_ms)
    if redis.call('HEXISTS', lock, from) == 1 then
        if redis.call('HLEN', lock) > 2 then
            return {0, 0}
        end
        -- A delete goes first: it is allowed when memory is full, and once something was written the rest is too.
        redis.call('DEL', lock)
    elseif redis.call('HEXISTS', lock, to) == 0 then
        return gone(lock, from)
    end
    return take_write(lock, to, '1', lease_ms)
end
