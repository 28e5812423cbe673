-- fenced_acquire: take the lock with a new fencing token, or raise the hold to the count told. Run twice it wastes a token.
--
-- The token is the counter's next value, or the server's time in microseconds if that is larger. So it grows over a counter that
-- was lost or fell back (a restart without the last writes, a failover), as long as the server's clock is not set back as well.
--
-- KEYS[1]  lock hash: holder id -> hold count
-- KEYS[2]  token: the newest fencing token
-- ARGV[1]  holder id
-- ARGV[2]  hold count to leave behind
-- ARGV[3]  lease_ms
--
-- Returns  {1, hold count, fencing token} granted, without the token for a re-entry, which keeps its first;
--          {0, retry after ms} busy; {-1, 0} a re-entry whose hold is gone
local lock, token = KEYS[1], KEYS[2]
local holder, count, lease_ms = ARGV[1], ARGV[2], ARGV[3]
-- Asked first: what may not be asked must not fail when the lock is taken already.
local time = redis.call('TIME')
local now_us = tonumber(time[1]) * 1000000 + tonumber(time[2])

local reply = take(lock, holder, count, lease_ms)
if reply[1] ~= 1 or tonumber(count) > 1 then
    return reply
end
local next_token = redis.pcall('INCR', token)
if tonumber(next_token) and next_token < now_us then
    local set = redis.pcall('SET', token, string.format('%.0f', now_us))
    next_token = set['ok'] and now_us or set
end
if not tonumber(next_token) then
    undo(lock, holder)
    return next_token
end
return {1, reply[2], next_token}
