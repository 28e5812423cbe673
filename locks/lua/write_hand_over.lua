-- write_hand_over: give the write hold back and take it for the next writer of the same client, in one step. Where the first one
-- reads beside its writing, nothing is done. Harmless when run twice.
--
-- KEYS[1]  lock hash: "mode" -> read or write, holder id -> hold count, writer's field -> hold count
-- ARGV[1]  writer's field that gives it back
-- ARGV[2]  writer's field that takes it
-- ARGV[3]  lease_ms of the one that takes it
--
-- Returns  {1, hold count} handed over; {0, 0} nothing was done: give it back as usual; {-1, 0} the first one held nothing, so
--          nothing was taken
local lock, from, to, lease_ms = KEYS[1], ARGV[1], ARGV[2], ARGV[3]

if redis.call('HEXISTS', lock, from) == 1 then
    if redis.call('HLEN', lock) > 2 then
        return {0, 0}
    end
    -- A delete goes first: it is allowed when memory is full, and once something was written the rest is too.
    redis.call('DEL', lock)
elseif redis.call('HEXISTS', lock, to) == 0 then
    return gone(lock, from)
end
return take_write(lock, to, '1', lease_ms)
