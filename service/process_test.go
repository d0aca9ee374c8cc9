package service_test

// Crashes and pauses need real processes: the test binary starts itself again, and instead of testing does one run.
