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
local reply = take(lock, holder, count, lease_ms)
if reply[1] ~= 1 or tonumber(count) > 1 then
    return reply
end
local time = redis.call('TIME')
local now_us = tonumber(time[1]) * 1000000 + tonumber(time[2])
local next_token = redis.call('INCR', token)
if next_token < now_us then
    next_token = now_us
    redis.call('SET', token, string.format('%.0f', now_us))
end
return {1, reply[2], next_token}
