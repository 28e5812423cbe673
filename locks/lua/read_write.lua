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

-- Keeps one read hold alive: its own key, made again if it is missing, and the hash. Shortens nothing.
local function keep_hold(lock, hold_key, lease_ms)
    if redis.call('PTTL', hold_key) < tonumber(lease_ms) then
        redis.call('SET', hold_key, '1', 'PX', lease_ms)
    end
    if redis.call('PTTL', lock) < tonumber(lease_ms) then
        redis.pcall('PEXPIRE', lock, lease_ms)
    end
end
