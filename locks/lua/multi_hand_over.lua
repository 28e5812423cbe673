-- multi_hand_over: give several locks back and take them for the next waiter of the same client, in one step; all or none. Where
-- one of them is lost, nothing is done. Harmless when run twice.
--
-- KEYS[1..]  lock hash: holder id -> hold count, each of the reentrant kind
-- ARGV[1]  holder id that gives them back
-- ARGV[2]  holder id that takes them
-- ARGV[3]  lease_ms of the one that takes them
--
-- Returns  {1, hold count} handed over; {0, 0} nothing was done: give them back as usual
local from, to, lease_ms = ARGV[1], ARGV[2], ARGV[3]
for _, lock in ipairs(KEYS) do
    if redis.call('HEXISTS', lock, from) == 0 and redis.call('HEXISTS', lock, to) == 0 then
        return {0, 0}
    end
end
for _, lock in ipairs(KEYS) do
    if redis.call('HEXISTS', lock, from) == 1 then
        redis.call('DEL', lock)
    end
end
return take_all(to, '1', lease_ms)
