-- fenced_hand_over: give the lock back and take it with a new fencing token for the next waiter of the same client, in one step.
-- Run twice it wastes a token.
--
-- KEYS[1]  lock hash: holder id -> hold count
-- KEYS[2]  token: the newest fencing token
-- ARGV[1]  holder id that gives it back
-- ARGV[2]  holder id that takes it
-- ARGV[3]  lease_ms of the one that takes it
--
-- Returns  {1, hold count, fencing token} handed over; {-1, 0} the first one held nothing, so nothing was taken
local lock, token = KEYS[1], KEYS[2]
local now = now_us()

local reply = pass(lock, ARGV[1], ARGV[2], ARGV[3])
if reply[1] ~= 1 then
    return reply
end
return numbered(reply, lock, ARGV[2], token, now)
