package service_test

// Gates stop a run in the middle: a row trigger waits as long as the gate is shut for its client's application_name.
