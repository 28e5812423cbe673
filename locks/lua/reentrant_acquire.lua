-- reentrant_acquire: take the lock, or raise the hold to the count told. Harmless when run twice.
--
-- KEYS[1]  lock hash: holder id -> hold count
-- ARGV[1]  holder id
-- ARGV[2]  hold count to leave behind
-- ARGV[3]  lease_ms
--
-- Returns  1 or {1, hold count} granted; {0, retry after ms} busy; {-1, 0} a re-entry whose hold is gone
local lock = KEYS[1]
local holder, count, lease_ms = ARGV[1], ARGV[2], ARGV[3]
if unlimited then
    undo(lock, holder)
    return unlimited
end
return take(lock, holder, count, lease_ms)
