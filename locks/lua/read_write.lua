-- read_write: a fragment, joined in front of the scripts of the read-write lock. Never run by itself.

local function wrong_kind()
    return redis.error_reply('WRONGKIND the key holds a lock that is no read-write lock')
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
