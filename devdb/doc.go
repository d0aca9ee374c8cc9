// Package devdb runs a private PostgreSQL for `caretaker dev`, tests and
// benchmarks, and fills it with the reference schema and demo data.
//
// It guarantees:
//
//   - Nothing has to be set up: the server programs that the system has are
//     used (version 14 or later), else they are downloaded once.
//   - The server listens on the loopback address alone, on a free port, and
//     asks for a password that was drawn for this folder.
//   - The server never outlives the process that started it, however that process ends. A small
//     shell holds the other end of a pipe and shuts the server down when the pipe closes. It also
//     removes a throw-away folder.
//   - One folder has one user at a time. A folder whose process was killed is taken over, with its
//     server if that still runs.
//
// It works on Linux and macOS, as root too: the server then runs as the user postgres, or "nobody".
package devdb
