// Package servicetest is what the tests of service and of the packages below it have in common: databases with a service
// on them ([Estate]), gates that stop a run in the middle, runs in processes of their own, servers that go away, and the
// rows that each worker works on. Tests alone import it.
//
// A test package hands its run over, and makes databases of its own in each test:
//
//	func TestMain(m *testing.M) { servicetest.Main(m) }
package servicetest
