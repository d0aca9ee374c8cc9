// Package oracle makes estates at random for the deletion pipeline, on the reference schema, and says
// from what it has generated alone what must be left of them at the end: see [Generate], [Estate.Load]
// and [Estate.Rows].
//
// It knows nothing of caretaker. Whoever tests compares each of [Tables] with the rows, and what is
// written down about the work with what triggers have seen: [Witness].
package oracle
