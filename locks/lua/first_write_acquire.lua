-- first_write_acquire: take the write hold, or raise it to the count told; if it is busy and the caller may give notice, let readers
-- know that a writer waits. Harmless when run twice.
--
-- KEYS[1]  lock hash: "mode" -> read or write, holder id -> hold count, writer's field -> hold count
-- KEYS[2]  writers: field of each writer that waits -> time until which its notice counts
-- ARGV[1]  writer's field
-- ARGV[2]  hold count to leave behind
-- ARGV[3]  lease_ms
-- ARGV[4]  how long a notice counts, in ms; 0 if none may be given
--
-- Returns  {1, hold count} granted; {0, retry after ms} busy; {-1, 0} a re-entry whose hold is gone
local lock, writers = KEYS[1], KEYS[2]
local writer, notice_ms = ARGV[1], ARGV[4]

local reply = take_write(lock, writer, ARGV[2], ARGV[3])
if reply[1] == 1 then
    redis.pcall('ZREM', writers, writer)
elseif reply[1] == 0 and reply[2] >= 0 and notice_ms ~= '0' then
    give_notice(writers, writer, notice_ms)
    return {0, math.min(reply[2], math.floor(tonumber(notice_ms) / 3))}
end
return reply
