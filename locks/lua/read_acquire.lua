-- read_acquire: take a read hold, or raise it to the count told. Harmless when run twice.
--
-- KEYS[1]  lock hash: "mode" -> read or write, holder id -> hold count, writer's field -> hold count
-- KEYS[2]  hold key of the count told: lives as long as that hold
-- ARGV[1]  holder id
-- ARGV[2]  hold count to leave behind
-- ARGV[3]  lease_ms
-- ARGV[4]  writer's field of the same owner, empty if it has none: beside its own write hold a reader is let in
--
-- Returns  {1, hold count} granted; {0, retry after ms} busy; {-1, 0} a re-entry whose hold is gone
local lock, hold_key = KEYS[1], KEYS[2]
local holder, count, lease_ms, writer = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

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
if redis.call('PTTL', hold_key) < tonumber(lease_ms) then
    redis.call('SET', hold_key, '1', 'PX', lease_ms)
end
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
