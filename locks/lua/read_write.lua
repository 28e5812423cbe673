-- read_write: a fragment, joined in front of the scripts of the read-write lock. Never run by itself.

-- A write that changes nothing: a node that must not write (a replica that lags) refuses it instead of answering "gone".
local function gone(lock, field)
    redis.call('HDEL', lock, field)
    return {-1, 0}
end

local function wrong_kind()
    return redis.error_reply('WRONGKIND the key holds a lock that is no read-write lock')
end

-- Takes a new hold back by whatever the user may do: a lock without an end would block everybody for ever.
local function undo(lock, ...)
    if redis.pcall('DEL', lock) ~= 1 then
        redis.pcall('HDEL', lock, ...)
    end
end

-- Keeps the key of one read hold alive, and makes it again if it is missing. Shortens nothing.
local function keep_hold_key(hold_key, lease_ms)
    local ttl = redis.call('PTTL', hold_key)
    if ttl == -2 then
        redis.call('SET', hold_key, '1', 'PX', lease_ms)
    elseif ttl < tonumber(lease_ms) then
        -- Not SET, which is refused when memory is full.
        redis.call('PEXPIRE', hold_key, lease_ms)
    end
end
