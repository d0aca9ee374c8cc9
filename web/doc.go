// Package web is the status page. It shows the state of the workers, and why workers do not run.
//
// It guarantees:
//
//   - GET changes nothing. A change is a POST of a signed form, which makes a call of the API with
//     its roles, limits and audit. The server itself writes two things to main's schema maintenance.
//     It saves samples for the charts once a minute, and a list of runs closes the runs whose process
//     died.
//   - However many browsers show the same page, its parts are read at most every two seconds, with
//     bounded statements. The last 200 parts are kept. Plans are computed on request, each at most
//     every 30 seconds, with the client limits of the API. At most 100 streams are open, 50 of
//     one client. They read a run once a second. A stream ends with the run, the server or the client's access.
//   - The page works and reports the outage while main does not answer. Lists and runs then show the
//     cause, and the time at which they were read.
//   - The page works without JavaScript, loads nothing from other hosts, and runs only its own
//     script (Content-Security-Policy).
//   - If the API requires a token, the page requires one of a viewer or higher: as bearer token, or
//     as password with any user name. Certificates have the same roles as in the API. Only the
//     documentation is open to all.
package web
