// Package web is a small page to look at: what the workers do, and why they do not.
//
// What it guarantees:
//
//   - It only reads. There is no form and no request other than GET and HEAD, so nobody can be tricked into anything. Two
//     things are written besides, in main's schema maintenance: the backlogs, once a minute, for the curves; and whoever
//     looks at the runs closes those whose process died.
//   - However many browsers look, the databases are read at most every two seconds, with bounded statements.
//   - It answers while main does not, and says so; lists are then those of before, with the time they were read.
//   - It works without JavaScript, loads nothing from elsewhere, and runs no script but its own (Content-Security-Policy).
//   - Where the API needs a token, so does the page: as bearer, or as password with any user name.
package web
