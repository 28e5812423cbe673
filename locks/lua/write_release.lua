-- write_release: lower the write hold to the count told; at 0 give the lock back, or to the reads of the same owner, and wake
-- everybody. Harmless when run twice.
--
-- KEYS[1]  lock hash: "mode" -> read or write, holder id -> hold count, writer's field -> hold count
-- ARGV[1]  writer's field
-- ARGV[2]  hold count to leave behind
-- ARGV[3]  wake channel
--
-- Returns  {holds left, subscribers that heard the wake-up, -1 if it may not be published}; {-1, 0} if it holds nothing
return give_write(KEYS[1], ARGV[1], tonumber(ARGV[2]), ARGV[3])
