-- fencing: a fragment, joined behind `take`. Never run by itself.
-- The token is the counter's next value, or the server's time in microseconds if that is larger. So it grows over a counter that
-- was lost or fell back (a restart without the last writes, a failover), as long as the server's clock is not set back as well.

local function now_us()
    local time = redis.call('TIME')
    return tonumber(time[1]) * 1000000 + tonumber(time[2])
end

-- Adds a token to a grant; what may not be numbered is taken back.
local function numbered(reply, lock, holder, token, now)
    local next_token = redis.pcall('INCR', token)
    if tonumber(next_token) and next_token < now then
        local set = redis.pcall('SET', token, string.format('%.0f', now), 'KEEPTTL')
        next_token = set['ok'] and now or set
    end
    if not tonumber(next_token) then
        undo(lock, holder)
        return next_token
    end
    return {1, reply[2], next_token}
end
