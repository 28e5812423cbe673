-- write_acquire: take the write hold, or raise it to the count told. Harmless when run twice.
--
-- KEYS[1]  lock hash: "mode" -> read or write, holder id -> hold count, writer's field -> hold count
-- ARGV[1]  writer's field
-- ARGV[2]  hold count to leave behind
-- ARGV[3]  lease_ms
--
-- Returns  {1, hold count} granted; {0, retry after ms} busy; {-1, 0} a re-entry whose hold is gone
return take_write(KEYS[1], ARGV[1], ARGV[2], ARGV[3])
