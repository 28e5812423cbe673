-- first_write_release: as write_release, and take back the writer's notice. A writer that leaves without the lock wakes the readers.
-- Harmless when run twice.
--
-- KEYS[1]  lock hash: "mode" -> read or write, holder id -> hold count, writer's field -> hold count
-- KEYS[2]  writers: field of each writer that waits -> time until which its notice counts
-- ARGV[1]  writer's field
-- ARGV[2]  hold count to leave behind
-- ARGV[3]  wake channel
--
-- Returns  {holds left, subscribers that heard the wake-up, -1 if it may not be published}; {-1, 0} if it holds nothing
local lock, writers = KEYS[1], KEYS[2]
local writer, channel = ARGV[1], ARGV[3]

local waited = redis.call('ZREM', writers, writer) == 1
local reply = give_write(lock, writer, tonumber(ARGV[2]), channel)
if waited and reply[1] == -1 and writers_wait(writers) == 0 then
    redis.pcall('PUBLISH', channel, '1')
end
return reply
