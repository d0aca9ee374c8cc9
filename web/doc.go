// Package web is the status page. It shows the state of the workers, and why workers do not run.
//
// It guarantees:
//
//   - The page is read-only: it has no forms, and GET and HEAD are the only methods. The server
//     still writes two things to main's schema maintenance. It saves the backlogs for the charts
//     once a minute, and a list of runs closes the runs whose process died.
//   - However many browsers there are, the databases are read at most every two seconds, with
//     bounded statements. Plans are computed on request, each at most every 30 seconds, with the
//     client limits of the API.
//   - The page works and reports the outage while main does not answer. Lists then show the time at
//     which they were read.
//   - The page works without JavaScript, loads nothing from other hosts, and runs only its own
//     script (Content-Security-Policy).
//   - If the API requires a token, the page requires one of a viewer or higher: as bearer token, or
//     as password with any user name. Certificates have the same roles as in the API.
package web
