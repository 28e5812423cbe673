-- take_all: a fragment, joined behind `take`. Never run by itself.
-- Takes all locks of KEYS, or raises the hold on all of them to the count told; all or none.
-- Returns {1, hold count}, {0, retry after ms, index from 0 of the lock that is busy} or {-1, 0}.
local function take_all(holder, count, lease_ms)
    for i, lock in ipairs(KEYS) do
        local ttl = redis.call('PTTL', lock)
        local held = ttl ~= -2 and redis.call('HGET', lock, holder)
        if not held and tonumber(count) > 1 then
            return gone(lock, holder)
        end
        if not held and ttl ~= -2 then
            if redis.call('HEXISTS', lock, 'mode') == 1 then
                return redis.error_reply('WRONGKIND one of the keys holds a read-write lock')
            end
            return {0, ttl, i - 1}
        end
    end
    local granted
    for _, lock in ipairs(KEYS) do
        granted = take(lock, holder, count, lease_ms)
        if granted[1] ~= 1 then
            -- Only an error can come in between: give back what was new.
            if tonumber(count) == 1 then
                for _, taken in ipairs(KEYS) do
                    if redis.call('HEXISTS', taken, holder) == 1 then
                        undo(taken, holder)
                    end
                end
            end
            return granted
        end
    end
    return granted
end
