-- writers: a fragment, joined behind `read_write`. Never run by itself.
-- The writers that wait for a lock whose readers let them come first: a sorted set beside the lock, which is ours alone. The
-- score is the time, in ms since 1970, until which the notice of a writer counts; it asks again well before.

local function now_ms()
    local time = redis.call('TIME')
    return tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
end

-- For how long readers have to let writers come first; 0 if none waits.
local function writers_wait(writers)
    local last = redis.call('ZRANGE', writers, -1, -1, 'WITHSCORES')
    return last[2] and math.max(0, tonumber(last[2]) - now_ms()) or 0
end

local function give_notice(writers, writer, notice_ms)
    redis.call('ZADD', writers, string.format('%.0f', now_ms() + tonumber(notice_ms)), writer)
    -- The newest notice lasts longest, so the set ends with it.
    redis.call('PEXPIRE', writers, notice_ms)
end
