-- reentrant_acquire: take the lock, or raise the hold to the count told. Harmless when run twice.
--
-- KEYS[1]  lock hash: holder id -> hold count
-- ARGV[1]  holder id
-- ARGV[2]  hold count to leave behind
-- ARGV[3]  lease_ms
--
-- Returns  {1, hold count} granted; {0, retry after ms} busy; {-1, 0} a re-entry whose hold is gone
local lock = KEYS[1]
local holder, count, lease_ms = ARGV[1], ARGV[2], ARGV[3]

local ttl = redis.call('PTTL', lock)
if ttl == -2 then
    if tonumber(count) > 1 then
        return {-1, 0}
    end
    redis.call('HSET', lock, holder, count)
    redis.call('PEXPIRE', lock, lease_ms)
    return {1, tonumber(count)}
end

local held = tonumber(redis.call('HGET', lock, holder))
if not held then
    if tonumber(count) > 1 then
        return {-1, 0}
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
