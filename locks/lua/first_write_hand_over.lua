-- first_write_hand_over: as write_hand_over, and take back the notices of both.
--
-- KEYS[1]  lock hash: "mode" -> read or write, holder id -> hold count, writer's field -> hold count
-- KEYS[2]  writers: field of each writer that waits -> time until which its notice counts
-- ARGV[1]  writer's field that gives it back
-- ARGV[2]  writer's field that takes it
-- ARGV[3]  lease_ms of the one that takes it
--
-- Returns  {1, hold count} handed over; {0, 0} nothing was done: give it back as usual; {-1, 0} the first one held nothing, so
--          nothing was taken
local reply = pass_write(KEYS[1], ARGV[1], ARGV[2], ARGV[3])
if reply[1] == 1 then
    redis.pcall('ZREM', KEYS[2], ARGV[1], ARGV[2])
end
return reply
