-- multi_acquire: take several locks, or raise all of one hold to the count told; all or none. Harmless when run twice.
--
-- KEYS[1..]  lock hash: holder id -> hold count, each of the reentrant kind
-- ARGV[1]  holder id
-- ARGV[2]  hold count to leave behind
-- ARGV[3]  lease_ms
--
-- Returns  {1, hold count} granted; {0, retry after ms, index from 0 of the lock that is busy}; {-1, 0} a re-entry whose hold is gone
local holder, count, lease_ms = ARGV[1], ARGV[2], ARGV[3]
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
