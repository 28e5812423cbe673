-- hand_over: give the lock back and take it for the next waiter of the same client, in one step. Harmless when run twice.
--
-- KEYS[1]  lock hash: holder id -> hold count
-- ARGV[1]  holder id that gives it back
-- ARGV[2]  holder id that takes it
-- ARGV[3]  lease_ms of the one that takes it
--
-- Returns  {1, hold count} handed over; {-1, 0} the first one held nothing, so nothing was taken
return pass(KEYS[1], ARGV[1], ARGV[2], ARGV[3])
