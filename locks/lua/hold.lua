-- hold: a fragment, joined in front of others. Never run by itself.

-- A write that changes nothing: a node that must not write (a replica that lags) refuses it instead of answering "gone".
local function gone(lock, field)
    redis.call('HDEL', lock, field)
    return {-1, 0}
end

-- Takes a new hold back by whatever the user may do: a lock without an end would block everybody for ever.
local function undo(lock, ...)
    if redis.pcall('DEL', lock) ~= 1 then
        redis.pcall('HDEL', lock, ...)
    end
end
