-- fenced_acquire: take the lock with a new fencing token, or raise the hold to the count told. Run twice it wastes a token.
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
local now = now_us()

local reply = take(lock, holder, count, lease_ms)
if reply[1] ~= 1 or tonumber(count) > 1 then
    return reply
end
return numbered(reply, lock, holder, token, now)
