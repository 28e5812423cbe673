-- multi_acquire: take several locks, or raise all of one hold to the count told; all or none. Harmless when run twice.
--
-- KEYS[1..]  lock hash: holder id -> hold count, each of the reentrant kind
-- ARGV[1]  holder id
-- ARGV[2]  hold count to leave behind
-- ARGV[3]  lease_ms
--
-- Returns  {1, hold count} granted; {0, retry after ms, index from 0 of the lock that is busy}; {-1, 0} a re-entry whose hold is gone
return take_all(ARGV[1], ARGV[2], ARGV[3])
