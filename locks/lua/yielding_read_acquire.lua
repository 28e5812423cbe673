-- yielding_read_acquire: as read_acquire, unless a writer waits: a new reader lets it come first. Harmless when run twice.
--
-- KEYS[1]  lock hash: "mode" -> read or write, holder id -> hold count, writer's field -> hold count
-- KEYS[2]  hold key of the count told: lives as long as that hold
-- KEYS[3]  writers: field of each writer that waits -> time until which its notice counts
-- ARGV[1]  holder id
-- ARGV[2]  hold count to leave behind
-- ARGV[3]  lease_ms
-- ARGV[4]  writer's field of the same owner, empty if it has none: beside its own write hold a reader is let in
--
-- Returns  {1, hold count} granted; {0, retry after ms} busy; {-1, 0} a re-entry whose hold is gone
local lock, hold_key, writers = KEYS[1], KEYS[2], KEYS[3]
local holder, count, lease_ms, writer = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

local is_in = redis.call('HEXISTS', lock, holder) == 1 or redis.call('HEXISTS', lock, writer) == 1
if not is_in and count == '1' then
    local wait = writers_wait(writers)
    if wait > 0 then
        return {0, wait}
    end
end
return take_read(lock, hold_key, holder, count, lease_ms, writer)
