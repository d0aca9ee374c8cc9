// Package servicetest is shared by the tests of service and of the packages below it. It has
// databases with a service on them ([Estate]), gates that stop a run in the middle, and runs in
// processes of their own. It has servers that go away, and the rows that each worker works on.
// Tests alone import it.
//
// A test package hands its run over, and makes databases of its own in each test:
//
//	func TestMain(m *testing.M) { servicetest.Main(m) }
package servicetest
